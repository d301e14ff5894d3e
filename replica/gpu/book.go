package gpu

import (
	"time"

	"switchyard/replica"
)

// book keeps what is compared between readings, by GPU.
type book struct {
	works  func(name string) bool
	tokens func(name string) int64
	pages  map[string]*page
	open   map[string]*page // entered in this round
}

type page struct {
	watch watch
	meter meter
	fault string // of this round
}

func newBook(r *Reader) book {
	return book{works: r.opts.Works, tokens: r.opts.Tokens, pages: map[string]*page{}, open: map[string]*page{}}
}

// entry is one reading of a GPU and who runs on it.
type entry struct {
	gpu   *replica.GPU
	lost  bool
	xids  map[int]float64
	users []string
}

func (b *book) enter(now time.Time, e entry) {
	p := b.pages[e.gpu.ID]
	if p == nil {
		p = &page{}
		b.pages[e.gpu.ID] = p
	}
	p.fault = p.watch.fault(e.gpu, e.lost, e.xids)
	var tokens int64
	works := false
	for _, u := range e.users {
		tokens += b.tokens(u)
		works = works || b.works(u)
	}
	p.meter.take(now, e.gpu, tokens, works)
	b.open[e.gpu.ID] = p
}

// close ends a round: it puts what was found about its GPUs into each replica's
// facts.
func (b *book) close(facts []replica.GPUFacts) {
	for i := range facts {
		f := &facts[i]
		for _, g := range f.GPUs {
			p := b.open[g.ID]
			if p == nil {
				continue
			}
			if f.Fault == "" {
				f.Fault = p.fault
			}
			joules, busy := p.meter.per1k()
			f.Joules += joules
			f.Busy += busy
		}
	}
	clear(b.open)
}
