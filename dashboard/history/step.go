package history

import (
	"math"
	"time"

	"switchyard/admission"
)

// step is one step in the making.
type step struct {
	number   int64
	from, to time.Time // of the last sample before it, and of the last in it

	arrived, completed, refused, failed, cancelled int64
	queued, running                                int64
	kept, broken                                   int64

	wait, first                    quantiles
	prompt, cached, output, wasted int64
	gpuUse, gpuUsed, gpuTotal      float64
	gpus                           int
}

func (st *step) sample(s, before *admission.Snapshot) {
	st.to = s.At
	t, last := s.Totals, before.Totals
	st.arrived += t.Arrived - last.Arrived
	st.completed += t.Completed - last.Completed
	st.refused += t.Refused - last.Refused
	st.failed += t.Failed - last.Failed
	st.cancelled += t.Cancelled - last.Cancelled
	st.kept += s.Promises.Kept - before.Promises.Kept
	st.broken += s.Promises.Broken - before.Promises.Broken
	st.queued, st.running = max(st.queued, t.Queued), max(st.running, t.Running)
	st.gpuUse, st.gpuUsed, st.gpuTotal, st.gpus = 0, 0, 0, 0
	seen := map[string]bool{} // several replicas may share one
	for i := range s.Replicas {
		g := s.Replicas[i].GPU
		if g == nil {
			continue
		}
		for j := range g.GPUs {
			d := &g.GPUs[j]
			if d.Err != "" || d.UUID != "" && seen[d.UUID] {
				continue
			}
			seen[d.UUID] = true
			if d.Utilization != nil {
				st.gpus++
				st.gpuUse += *d.Utilization
			}
			st.gpuUsed += float64(d.MemoryUsed)
			st.gpuTotal += float64(d.MemoryTotal)
		}
	}
}

func (st *step) ended(d *admission.Decision) {
	if len(d.Attempts) > 0 {
		st.wait.add(d.QueueMs / 1000)
	}
	for _, a := range d.Attempts {
		if a.Result != "ok" {
			st.wasted += int64(a.OutputTokens)
		}
		st.prompt += int64(a.PromptTokens)
		st.cached += int64(a.CachedTokens)
		st.output += int64(a.OutputTokens)
	}
	if ms := firstTokenMs(d); ms > 0 {
		st.first.add(ms / 1000)
	}
}

// firstTokenMs is when a request's first token came, from the end of its
// headers: that of the first attempt that brought any. 0: none came.
func firstTokenMs(d *admission.Decision) float64 {
	for _, a := range d.Attempts {
		if a.FirstTokenMs > 0 {
			return a.FirstTokenMs
		}
	}
	return 0
}

// seconds is the time that the step's counts are of.
func (st *step) seconds() float64 { return st.to.Sub(st.from).Seconds() }

func (st *step) point() Point {
	s := st.seconds()
	rate := func(n int64) float32 { return float32(float64(n) / s) }
	share := func(a, b float64) float32 { return float32(a / b) } // NaN where nothing was
	return Point{
		Arrived: rate(st.arrived), Completed: rate(st.completed), Refused: rate(st.refused), Failed: rate(st.failed), Cancelled: rate(st.cancelled),
		Queued: float32(st.queued), Running: float32(st.running),
		WaitP50: float32(st.wait.at(0.5)), WaitP99: float32(st.wait.at(0.99)),
		FirstP50: float32(st.first.at(0.5)), FirstP99: float32(st.first.at(0.99)),
		PromptTokens: rate(st.prompt), OutputTokens: rate(st.output),
		CacheShare: share(float64(st.cached), float64(st.prompt)),
		GPUUse:     share(st.gpuUse, float64(st.gpus)), GPUMemory: share(st.gpuUsed, st.gpuTotal),
	}
}

// quantiles is a histogram of seconds from 1 ms to 3 h whose buckets grow by
// 8 %: a quantile is within 4 % of the true one.
type quantiles struct {
	n       int
	buckets [212]uint32
}

const (
	bucketGrowth = 1.08
	bucketFloor  = 0.001
)

var logGrowth = math.Log(bucketGrowth)

func (q *quantiles) add(seconds float64) {
	i := 0
	if seconds > bucketFloor {
		i = min(len(q.buckets)-1, 1+int(math.Log(seconds/bucketFloor)/logGrowth))
	}
	q.buckets[i]++
	q.n++
}

func (q *quantiles) merge(o *quantiles) {
	q.n += o.n
	for i, n := range o.buckets {
		q.buckets[i] += n
	}
}

// at is the quantile p in seconds, NaN of nothing.
func (q *quantiles) at(p float64) float64 {
	if q.n == 0 {
		return math.NaN()
	}
	rank := max(1, int(math.Ceil(p*float64(q.n))))
	for i, n := range q.buckets {
		if rank -= int(n); rank <= 0 {
			if i == 0 {
				return bucketFloor
			}
			return bucketFloor * math.Pow(bucketGrowth, float64(i)-0.5)
		}
	}
	panic("history: the buckets do not add up")
}
