package telemetry

import "sync"

// maxLabels bounds the series that one label makes; other is what is beyond.
const (
	maxLabels = 100
	other     = "other"
)

// labels bounds a label's values. The first hundred keep their names: the
// busiest are almost surely among them, and a counter that had to give its
// name up later would look like a restart to Prometheus.
type labels struct {
	mu struct {
		sync.RWMutex
		known map[string]struct{}
	}
}

func newLabels() *labels {
	l := &labels{}
	l.mu.known = map[string]struct{}{}
	return l
}

// bound gives the value, or other when there are too many already.
func (l *labels) bound(v string) string {
	l.mu.RLock()
	_, ok := l.mu.known[v]
	n := len(l.mu.known)
	l.mu.RUnlock()
	if ok {
		return v
	}
	if n >= maxLabels {
		return other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.known) >= maxLabels {
		return other
	}
	l.mu.known[v] = struct{}{}
	return v
}
