package gpu

import (
	"fmt"

	"switchyard/replica"
)

// fatalXids are the driver's error events after which a GPU does not work on
// until it is reset or its host restarted. Others are an application's own
// mistakes (13, 31, 43, 45, 68, 109) or information (63, 92, 94: contained, its
// process is gone): the breaker's usual means see to those. Source: NVIDIA's
// Xid catalog, docs.nvidia.com/deploy/xid-errors, by its immediate actions.
var fatalXids = map[int]string{
	48:  "an uncorrectable memory error",
	62:  "its internal micro-controller has halted",
	64:  "a broken memory row could not be replaced",
	74:  "an NVLink error",
	79:  "it has fallen off the bus",
	95:  "an uncontained memory error",
	119: "its system processor (GSP) does not answer",
	120: "its system processor (GSP) has failed",
}

// xidFault puts a fatal event into words; empty: it is not fatal.
func xidFault(gpu string, xid int) string {
	if what := fatalXids[xid]; what != "" {
		return fmt.Sprintf("Xid %d on GPU %s: %s", xid, gpu, what)
	}
	return ""
}

// watch compares a GPU's readings with earlier ones. What an exporter or a
// counter shows at first may be old: only what is new since then is a fault.
type watch struct {
	seen bool
	lost bool
	ecc  int64
	xid  int
	xids map[int]float64 // counts by Xid, where the source counts
}

// fault gives a fatal error that this reading shows and earlier ones did not.
func (w *watch) fault(g *replica.GPU, lost bool, xids map[int]float64) (fault string) {
	wasLost := w.lost
	w.lost = lost
	if lost {
		if !wasLost {
			return fmt.Sprintf("GPU %s: %s", g.ID, g.Err)
		}
		return ""
	}
	if g.Err != "" {
		return ""
	}
	if g.ECCUncorrected != nil {
		if now := *g.ECCUncorrected; w.seen && now > w.ecc {
			fault = fmt.Sprintf("uncorrectable memory errors on GPU %s: %d, %d before", g.ID, now, w.ecc)
		}
		w.ecc = *g.ECCUncorrected
	}
	if w.seen && g.Xid != w.xid {
		if f := xidFault(g.ID, g.Xid); f != "" {
			fault = f
		}
	}
	for xid, n := range xids {
		if f := xidFault(g.ID, xid); w.seen && n > w.xids[xid] && f != "" {
			fault = f
		}
	}
	w.seen, w.xid, w.xids = true, g.Xid, xids
	return fault
}
