// Package telemetry turns what happens into Prometheus metrics, the decision
// log and the access log. It decides nothing and keeps no state of its own but
// counters and the last decisions; it never sees a prompt or a key.
package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"switchyard/admission"
	"switchyard/gateway"
)

// Metrics are the counters and histograms that requests feed. The gauges come
// from a snapshot at each scrape, so that they agree with /admin/state.
type Metrics struct {
	Registry *prometheus.Registry

	requests, attempts, retries, refusals, broken, promptTok, cachedTok, expectedTok, outTok *prometheus.CounterVec
	wait, forecastErr, ttft, tpot, duration                                                  *prometheus.HistogramVec
	refusal                                                                                  prometheus.Histogram
	affinity                                                                                 map[admission.Affinity]prometheus.Counter

	models, keys *labels
	counters     known[counterKey, prometheus.Counter]
	series       known[seriesKey, *series]
}

// known is the series that were counted in before: looking their labels up
// costs more than counting.
type known[K comparable, V any] struct {
	mu struct {
		sync.RWMutex
		m map[K]V
	}
}

// get gives what k stands for, which look finds where it is not known yet.
func (s *known[K, V]) get(k K, look func() V) V {
	s.mu.RLock()
	v, ok := s.mu.m[k]
	s.mu.RUnlock()
	if ok {
		return v
	}
	v = look()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.m == nil {
		s.mu.m = map[K]V{}
	}
	s.mu.m[k] = v
	return v
}

// counterKey is a counter of two labels.
type counterKey struct {
	of   *prometheus.CounterVec
	a, b string
}

func (m *Metrics) counter(of *prometheus.CounterVec, a, b string) prometheus.Counter {
	return m.counters.get(counterKey{of, a, b}, func() prometheus.Counter { return of.WithLabelValues(a, b) })
}

// seriesKey names what a request's end feeds; its values are bounded as labels are.
type seriesKey struct {
	class, key, model string
	outcome           admission.Outcome
}

type series struct {
	requests                          prometheus.Counter
	duration, wait, forecastErr, tpot prometheus.Observer
}

func (m *Metrics) seriesOf(k seriesKey) *series {
	return m.series.get(k, func() *series {
		return &series{
			requests:    m.requests.WithLabelValues(k.class, k.key, k.model, k.outcome.String()),
			duration:    m.duration.WithLabelValues(k.model, k.class),
			wait:        m.wait.WithLabelValues(k.class),
			forecastErr: m.forecastErr.WithLabelValues(k.class),
			tpot:        m.tpot.WithLabelValues(k.model, k.class),
		}
	})
}

var (
	longBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280}
	tpotBuckets = []float64{.001, .0025, .005, .01, .02, .04, .06, .08, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	errBuckets  = []float64{-60, -30, -10, -5, -2, -1, -.5, -.2, -.1, 0, .1, .2, .5, 1, 2, 5, 10, 30, 60}
	fastBuckets = []float64{.00005, .0001, .0002, .0003, .0005, .00075, .001, .002, .005, .01, .1}
)

// NewMetrics makes the metrics in a registry of their own; snapshot is called
// once a scrape.
func NewMetrics(snapshot func() *admission.Snapshot) *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry(), models: newLabels(), keys: newLabels()}
	counter := func(name, help string, ls ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, ls)
		m.Registry.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, ls ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, ls)
		m.Registry.MustRegister(v)
		return v
	}
	m.requests = counter("switchyard_requests_total", "Requests that have ended, by outcome.", "class", "key", "model", "outcome")
	m.refusals = counter("switchyard_refusals_total", "Requests the gateway itself turned away.", "class", "reason")
	m.attempts = counter("switchyard_attempts_total", "Attempts that have ended, by what they came to.", "replica", "result")
	m.retries = counter("switchyard_retries_total", "Requests put back into the queue after a failed attempt.", "reason")
	m.broken = counter("switchyard_streams_broken_total", "Streams that broke after the client had seen a part.", "replica", "reason")
	m.promptTok = counter("switchyard_prompt_tokens_total", "Prompt tokens of finished requests, cached ones too.", "replica", "model")
	m.cachedTok = counter("switchyard_cached_tokens_total", "Prompt tokens that replicas took from their caches.", "replica", "model")
	m.expectedTok = counter("switchyard_cached_tokens_expected_total", "Prompt tokens that replicas were expected to take from their caches.", "replica", "model")
	affinity := counter("switchyard_affinity_total", "Requests that were sent to a replica, by whether it was believed to have a part of the prompt in its cache.", "result")
	m.affinity = map[admission.Affinity]prometheus.Counter{}
	for _, a := range []admission.Affinity{admission.AffinityHit, admission.AffinityMiss, admission.AffinityNone} {
		m.affinity[a] = affinity.WithLabelValues(a.String())
	}
	m.outTok = counter("switchyard_output_tokens_total", "Output tokens of finished requests.", "replica", "model")
	m.wait = histogram("switchyard_queue_wait_seconds", "Time from acceptance to the last attempt's start.", longBuckets, "class")
	m.forecastErr = histogram("switchyard_forecast_error_seconds", "First token: actual minus forecast.", errBuckets, "class")
	m.ttft = histogram("gen_ai_server_time_to_first_token_seconds", "From the end of the headers to the first token.", longBuckets, "gen_ai_request_model", "class")
	m.tpot = histogram("gen_ai_server_time_per_output_token_seconds", "Mean time between output tokens of an answer.", tpotBuckets, "gen_ai_request_model", "class")
	m.duration = histogram("gen_ai_server_request_duration_seconds", "From the end of the headers to the end of the answer.", longBuckets, "gen_ai_request_model", "class")
	m.refusal = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "switchyard_refusal_seconds", Buckets: fastBuckets,
		Help: "From the last byte of a request's body to its refusal on arrival.",
	})
	m.Registry.MustRegister(m.refusal, &stateCollector{snapshot: snapshot},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// RequestEnded implements gateway.Observer.
func (m *Metrics) RequestEnded(r gateway.Record) {
	model, class := m.model(r), r.Class
	s := m.seriesOf(seriesKey{class, m.keys.bound(r.Key), model, r.Outcome})
	s.requests.Inc()
	s.duration.Observe(r.Took.Seconds())
	if r.Outcome == admission.Refused {
		m.refusals.WithLabelValues(class, string(r.Reason)).Inc()
	}
	if r.Attempts == 0 {
		return
	}
	s.wait.Observe(r.Queued.Seconds())
	m.affinity[r.Affinity].Inc()
	u := r.Usage
	if n := u.PromptTokens; n > 0 {
		m.counter(m.promptTok, r.Replica, model).Add(float64(n))
		m.counter(m.cachedTok, r.Replica, model).Add(float64(u.CachedTokens))
		m.counter(m.expectedTok, r.Replica, model).Add(float64(r.CachedTokens))
	}
	if n := u.OutputTokens; n > 0 {
		m.counter(m.outTok, r.Replica, model).Add(float64(n))
	}
	if r.FirstToken > 0 {
		s.forecastErr.Observe(r.FirstToken.Seconds() - r.Decision.ForecastS)
	}
	if d := decodeTime(r); d > 0 && u.OutputTokens > 1 {
		s.tpot.Observe(d.Seconds() / float64(u.OutputTokens-1))
	}
}

// model is the label of a request's model. Names that no replica serves are
// the client's own text and get no series of their own.
func (m *Metrics) model(r gateway.Record) string {
	if r.Reason == admission.ReasonModelNotFound || r.Reason == admission.ReasonBadRequest {
		return other
	}
	return m.models.bound(r.Model)
}

func decodeTime(r gateway.Record) time.Duration {
	if r.Usage.Decode > 0 {
		return r.Usage.Decode
	}
	if r.Stream && r.FirstToken > 0 && r.Outcome == admission.Completed {
		return r.Took - r.FirstToken
	}
	return 0
}

// Refused implements gateway.Observer.
func (m *Metrics) Refused(_, _ string, took time.Duration) { m.refusal.Observe(took.Seconds()) }

// AttemptEnded implements gateway.Observer.
func (m *Metrics) AttemptEnded(replica, result string) {
	m.counter(m.attempts, replica, result).Inc()
}

// Retried implements gateway.Observer.
func (m *Metrics) Retried(reason string) { m.retries.WithLabelValues(reason).Inc() }

// StreamBroken implements gateway.Observer.
func (m *Metrics) StreamBroken(replica, reason string) {
	m.broken.WithLabelValues(replica, reason).Inc()
}

// FirstToken implements gateway.Observer.
func (m *Metrics) FirstToken(model, class string, d time.Duration) {
	m.ttft.WithLabelValues(m.models.bound(model), class).Observe(d.Seconds())
}

// stateCollector renders a snapshot at each scrape.
type stateCollector struct{ snapshot func() *admission.Snapshot }

func desc(name, help string, ls ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, ls, nil)
}

var (
	descArrivals    = desc("switchyard_arrivals_total", "Requests whose class is known.", "class")
	descPromises    = desc("switchyard_promises_total", "Accepted requests, by whether the first token came in time.", "class", "result")
	descBooked      = desc("switchyard_booked_returns", "Refused requests with a place booked for their return.", "class")
	descWouldRefuse = desc("switchyard_would_refuse_total", "Requests that admission would have refused, had it not only observed, by what then happened: late, in_time, or unknown (they left or failed first).", "class", "result")
	descRunning     = desc("switchyard_running_requests", "Requests with an attempt under way.", "class")
	descQueue       = desc("switchyard_queue_requests", "Requests that wait.", "class")
	descBytes       = desc("switchyard_queue_bytes", "Bytes of the bodies that wait.", "class")
	descSlots       = desc("switchyard_replica_slots", "Slots of a replica, by who holds them.", "replica", "state")
	descUp          = desc("switchyard_replica_up", "1 while the replica answers its probes.", "replica")
	descBreaker     = desc("switchyard_breaker_state", "0 closed, 1 half-open, 2 open.", "replica")
	descGPUUse      = desc("switchyard_gpu_utilization_ratio", "Share of the last moment in which the GPU did something.", "replica", "gpu")
	descGPUUsed     = desc("switchyard_gpu_memory_used_bytes", "Memory in use on the GPU.", "replica", "gpu")
	descGPUTotal    = desc("switchyard_gpu_memory_total_bytes", "Memory of the GPU.", "replica", "gpu")
	descGPUTemp     = desc("switchyard_gpu_temperature_celsius", "Temperature of the GPU.", "replica", "gpu")
	descGPUPower    = desc("switchyard_gpu_power_watts", "Power the GPU draws.", "replica", "gpu")
	descGPUEnergy   = desc("switchyard_gpu_energy_joules_total", "Energy the GPU has taken since its driver was loaded.", "replica", "gpu")
	descGPUSlowed   = desc("switchyard_gpu_throttled", "1 while heat or power hold the GPU's clocks down.", "replica", "gpu")
	descAllowance   = desc("switchyard_breaker_allowance", "Share of the replica's slots that the breaker allows.", "replica")
)

// Describe implements prometheus.Collector.
func (s *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descArrivals, descPromises, descBooked, descWouldRefuse, descRunning, descQueue, descBytes, descSlots, descUp, descBreaker, descAllowance,
		descGPUUse, descGPUUsed, descGPUTotal, descGPUTemp, descGPUPower, descGPUEnergy, descGPUSlowed,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *stateCollector) Collect(ch chan<- prometheus.Metric) {
	st := s.snapshot()
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, ls ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, ls...)
	}
	for _, c := range st.Classes {
		send(descArrivals, prometheus.CounterValue, float64(c.Arrived), c.Name)
		send(descPromises, prometheus.CounterValue, float64(c.Kept), c.Name, "kept")
		send(descPromises, prometheus.CounterValue, float64(c.Broken), c.Name, "broken")
		send(descBooked, prometheus.GaugeValue, float64(c.Booked), c.Name)
		send(descWouldRefuse, prometheus.CounterValue, float64(c.WouldRefuse.Late), c.Name, "late")
		send(descWouldRefuse, prometheus.CounterValue, float64(c.WouldRefuse.InTime), c.Name, "in_time")
		send(descWouldRefuse, prometheus.CounterValue, float64(c.WouldRefuse.Unknown), c.Name, "unknown")
		send(descRunning, prometheus.GaugeValue, float64(c.Running), c.Name)
		send(descQueue, prometheus.GaugeValue, float64(c.Queued), c.Name)
		send(descBytes, prometheus.GaugeValue, float64(c.QueuedBytes), c.Name)
	}
	for _, r := range st.Replicas {
		send(descSlots, prometheus.GaugeValue, float64(r.Slots.Free), r.Name, "free")
		send(descSlots, prometheus.GaugeValue, float64(r.Slots.Busy), r.Name, "busy")
		send(descSlots, prometheus.GaugeValue, float64(r.Slots.Zombie), r.Name, "zombie")
		send(descSlots, prometheus.GaugeValue, float64(r.Slots.Foreign), r.Name, "foreign")
		send(descUp, prometheus.GaugeValue, boolean(r.Up), r.Name)
		send(descBreaker, prometheus.GaugeValue, breakerNumber[r.Breaker.State], r.Name)
		send(descAllowance, prometheus.GaugeValue, r.Breaker.Allowance, r.Name)
		sendGPUs(send, r)
	}
}

// sendGPUs sends what the GPUs of a replica gave; what they did not give has no
// series.
func sendGPUs(send func(*prometheus.Desc, prometheus.ValueType, float64, ...string), r admission.ReplicaState) {
	if r.GPU == nil {
		return
	}
	for _, g := range r.GPU.GPUs {
		if g.Err != "" {
			continue
		}
		given := func(d *prometheus.Desc, t prometheus.ValueType, v *float64) {
			if v != nil {
				send(d, t, *v, r.Name, g.ID)
			}
		}
		given(descGPUUse, prometheus.GaugeValue, g.Utilization)
		if g.MemoryTotal > 0 {
			send(descGPUUsed, prometheus.GaugeValue, float64(g.MemoryUsed), r.Name, g.ID)
			send(descGPUTotal, prometheus.GaugeValue, float64(g.MemoryTotal), r.Name, g.ID)
		}
		given(descGPUTemp, prometheus.GaugeValue, g.TemperatureC)
		given(descGPUPower, prometheus.GaugeValue, g.PowerW)
		given(descGPUEnergy, prometheus.CounterValue, g.EnergyJ)
		send(descGPUSlowed, prometheus.GaugeValue, boolean(g.Throttle.Slowing()), r.Name, g.ID)
	}
}

var breakerNumber = map[string]float64{"closed": 0, "half-open": 1, "open": 2}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
