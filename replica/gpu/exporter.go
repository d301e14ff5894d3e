package gpu

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"switchyard/replica"
)

// maxText bounds an exporter's answer: the largest machines give some 500 KiB.
const maxText = 8 << 20

// exporterSource reads an exporter's text.
type exporterSource struct {
	url     string
	timeout time.Duration
	client  *http.Client
	targets []Target
	book    book
	clocks  map[string]float64 // highest SM clock seen by GPU, where the exporter does not give it
}

func newExporterSource(r *Reader, targets []Target) *exporterSource {
	return &exporterSource{
		url: targets[0].Metrics, timeout: r.opts.Timeout, targets: targets,
		client: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		book: newBook(r), clocks: map[string]float64{},
	}
}

func (e *exporterSource) close() { e.client.CloseIdleConnections() }

func (e *exporterSource) read(ctx context.Context) []replica.GPUFacts {
	facts := make([]replica.GPUFacts, len(e.targets))
	now := time.Now()
	cards, err := e.cards(ctx)
	users := map[*exported][]string{}
	for i, t := range e.targets {
		facts[i] = replica.GPUFacts{At: now, Source: replica.SourceNone}
		if err != nil {
			facts[i].Note = err.Error()
			continue
		}
		c := find(cards, t.ID)
		if c == nil {
			facts[i].Note = fmt.Sprintf("%s has no GPU %s, but %s", e.host(), t.ID, known(cards))
			continue
		}
		facts[i].Source, facts[i].Note, facts[i].GPUs = replica.SourceExporter, "by "+e.host(), []replica.GPU{c.gpu}
		users[c] = append(users[c], t.Name)
	}
	for c, names := range users {
		e.book.enter(now, entry{gpu: &c.gpu, xids: c.xids, users: names})
	}
	e.book.close(facts)
	return facts
}

// host names the exporter as people know it, without credentials.
func (e *exporterSource) host() string {
	if u, err := url.Parse(e.url); err == nil {
		return u.Redacted()
	}
	return "the exporter"
}

// cards asks the exporter for its GPUs.
func (e *exporterSource) cards(ctx context.Context) ([]*exported, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", e.host(), err)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, err // says whom it asked
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxText))
	if err != nil {
		return nil, fmt.Errorf("reading from %s: %w", e.host(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: want the metrics of dcgm-exporter or nvidia_gpu_exporter", e.host(), resp.Status)
	}
	cards := readExport(parseText(text, dcgmPrefix, smiPrefix))
	if len(cards) == 0 {
		return nil, fmt.Errorf("%s has no DCGM_FI_DEV_ and no nvidia_smi_ metrics of a GPU: is it dcgm-exporter or nvidia_gpu_exporter, and does it see a GPU?", e.host())
	}
	for _, c := range cards {
		g := &c.gpu
		if g.MaxSMClockMHz == 0 {
			e.clocks[g.UUID] = max(e.clocks[g.UUID], g.SMClockMHz)
			g.MaxSMClockMHz = e.clocks[g.UUID]
		}
	}
	return cards, nil
}
