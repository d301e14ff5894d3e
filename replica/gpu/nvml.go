package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"switchyard/replica"
)

// library is what is used of NVML.
type library interface {
	cards() []card // those of this host, by index
	// byUUID finds a card, or a share of one (MIG).
	byUUID(uuid string) (card, error)
	// wait waits for the next error event of any card, up to d.
	wait(d time.Duration) (event, error)
	close()
}

// card is one GPU of this host.
type card interface {
	id() string // index, or the UUID of a share
	// read reads it. An error says that the card as a whole does not answer;
	// errLost, that it will not again without help. GPU.Err is set then.
	read() (replica.GPU, error)
	processes() []int
}

// event is an Xid on a card.
type event struct {
	uuid string
	xid  int
}

var (
	errLost    = errors.New("lost")
	errGone    = errors.New("NVML has ended")   // the library must be opened anew
	errNoEvent = errors.New("no event in time") // wait
)

// retryOpen is how often a library that could not be opened is tried again:
// a driver may be loaded, or a container's GPU come back, later.
const retryOpen = 30 * time.Second

// nvmlSource reads the cards of this host.
type nvmlSource struct {
	ctx  context.Context
	open func() (library, error)
	sink func(name string, f replica.GPUFacts)
	all  []*binding
	host host
	book book

	lib      library
	why      error // lib could not be opened
	retry    time.Time
	listener sync.WaitGroup
	deafen   context.CancelFunc

	mu struct {
		sync.Mutex
		last []replica.GPUFacts // as handed on last, for faults between readings
		xids map[string]int     // the last one by card
	}
}

func newNVMLSource(ctx context.Context, r *Reader, targets []Target) *nvmlSource {
	s := &nvmlSource{ctx: ctx, open: r.open, sink: r.opts.Sink, host: r.proc, book: newBook(r)}
	s.mu.xids = map[string]int{}
	for _, t := range targets {
		s.all = append(s.all, &binding{target: t, host: r.proc})
	}
	return s
}

func (s *nvmlSource) close() {
	if s.lib == nil {
		return
	}
	s.deafen()
	s.listener.Wait()
	s.lib.close()
	s.lib = nil
}

func (s *nvmlSource) read(ctx context.Context) []replica.GPUFacts {
	facts := make([]replica.GPUFacts, len(s.all))
	now := time.Now()
	for i, b := range s.all {
		facts[i] = replica.GPUFacts{At: now, Source: replica.SourceNone, Note: b.elsewhere(ctx, now)}
	}
	if !slices.ContainsFunc(facts, func(f replica.GPUFacts) bool { return f.Note == "" }) {
		return facts // nothing here needs the library
	}
	if err := s.ensure(now); err != nil {
		for i := range facts {
			if facts[i].Note == "" {
				facts[i].Note = err.Error()
			}
		}
		return facts
	}
	s.fill(now, facts)
	s.mu.Lock()
	s.mu.last = slices.Clone(facts)
	s.mu.Unlock()
	return facts
}

// ensure opens the library where it is not open.
func (s *nvmlSource) ensure(now time.Time) error {
	if s.lib != nil {
		return nil
	}
	if now.Before(s.retry) {
		return s.why
	}
	if s.lib, s.why = s.open(); s.why != nil {
		s.lib, s.retry = nil, now.Add(retryOpen)
		return s.why
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.deafen = cancel
	lib := s.lib
	s.listener.Go(func() { s.listen(ctx, lib) })
	return nil
}

// fill reads the cards and puts each replica's into its facts.
func (s *nvmlSource) fill(now time.Time, facts []replica.GPUFacts) {
	round := &round{lib: s.lib, read: map[string]*look{}}
	round.cards = s.lib.cards()
	for i, b := range s.all {
		if facts[i].Note == "" {
			b.fill(now, &facts[i], round)
		}
	}
	for _, l := range round.read {
		s.book.enter(now, entry{gpu: &l.gpu, lost: errors.Is(l.err, errLost), users: l.users})
	}
	s.book.close(facts)
	for i := range facts { // the events themselves have told of these
		for j := range facts[i].GPUs {
			g := &facts[i].GPUs[j]
			g.Xid = s.lastXid(g.UUID)
		}
	}
	if round.gone {
		s.close()
		s.retry, s.why = now.Add(retryOpen), errors.New("NVML has ended: the driver was unloaded, or the container's GPU taken away; it is tried again")
	}
}

func (s *nvmlSource) lastXid(uuid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.xids[uuid]
}

// listen hands fatal events on at once, with what was read last.
func (s *nvmlSource) listen(ctx context.Context, lib library) {
	const step = 250 * time.Millisecond // an end waits so long at most
	for ctx.Err() == nil {
		e, err := lib.wait(step)
		switch {
		case errors.Is(err, errNoEvent):
		case err != nil:
			return // readings still tell a lost card and new memory errors
		default:
			s.hear(e)
		}
	}
}

func (s *nvmlSource) hear(e event) {
	s.mu.Lock()
	s.mu.xids[e.uuid] = e.xid
	last := s.mu.last
	s.mu.Unlock()
	for i, f := range last {
		for _, g := range f.GPUs {
			if g.UUID != e.uuid {
				continue
			}
			if f.Fault = xidFault(g.ID, e.xid); f.Fault != "" {
				f.At = time.Now()
				s.sink(s.all[i].target.Name, f)
			}
		}
	}
}

// round is one reading of the cards that are asked for.
type round struct {
	lib   library
	cards []card
	read  map[string]*look // by ID
	gone  bool
}

// look is one card's reading.
type look struct {
	gpu   replica.GPU
	err   error
	users []string
}

// take reads a card, once a round.
func (r *round) take(c card, user string) replica.GPU {
	l := r.read[c.id()]
	if l == nil {
		l = &look{}
		l.gpu, l.err = c.read()
		r.read[c.id()] = l
		r.gone = r.gone || errors.Is(l.err, errGone)
	}
	l.users = append(l.users, user)
	return l.gpu
}

// named finds the card that the configuration names.
func (r *round) named(id string) (card, error) {
	if i, err := strconv.Atoi(id); err == nil {
		if i < len(r.cards) {
			return r.cards[i], nil
		}
		return nil, fmt.Errorf("NVML knows %s, and no GPU %d", count(len(r.cards)), i)
	}
	c, err := r.lib.byUUID(id)
	if err != nil {
		return nil, fmt.Errorf("NVML knows no %s: %w", id, err)
	}
	return c, nil
}

func count(gpus int) string {
	if gpus == 1 {
		return "1 GPU"
	}
	return strconv.Itoa(gpus) + " GPUs"
}

// binding ties a replica to the cards it runs on.
type binding struct {
	target Target
	host   host

	here    bool
	away    string    // why it is not here
	asked   time.Time // when that was found
	pids    []int     // that listen on the replica's port
	missing error     // there are none
	looked  time.Time // when they were looked for in vain
	cards   []card    // as last found
	note    string
}

// What was not found is looked for no oftener than this: an address asks the
// name service, a process takes reading every process's files.
const (
	hereEvery = time.Minute
	lookEvery = 10 * time.Second
)

// elsewhere says why a replica's GPU cannot be read on this host; empty: it can.
func (b *binding) elsewhere(ctx context.Context, now time.Time) (why string) {
	if b.target.Mode == NVML || b.here {
		return ""
	}
	if b.away == "" || now.Sub(b.asked) >= hereEvery {
		b.here, b.away = b.host.here(ctx, b.target.URL)
		b.asked = now
	}
	return b.away
}

func (b *binding) fill(now time.Time, f *replica.GPUFacts, r *round) {
	if b.target.Mode == NVML {
		c, err := r.named(b.target.ID)
		if err != nil {
			f.Note = err.Error()
			return
		}
		b.cards, b.note = []card{c}, "by NVML, as configured"
	} else if why := b.search(now, f, r.cards); why != "" {
		f.Note = why
		return
	}
	f.Source, f.Note = replica.SourceNVML, b.note
	for _, c := range b.cards {
		f.GPUs = append(f.GPUs, r.take(c, b.target.Name))
	}
}

// search finds the cards that the replica's process, or a child of its, is on.
// Once found they stay: Ollama unloads its models, and is on none then.
func (b *binding) search(now time.Time, f *replica.GPUFacts, cards []card) (why string) {
	if err := b.process(now); err != nil {
		if len(b.cards) > 0 {
			return ""
		}
		return err.Error()
	}
	var on []card
	for _, c := range cards {
		if slices.ContainsFunc(c.processes(), func(pid int) bool { return b.host.under(pid, b.pids) }) {
			on = append(on, c)
		}
	}
	process := fmt.Sprintf("its process %d (%s)", b.pids[0], b.host.name(b.pids[0]))
	switch {
	case len(on) > 0:
		b.cards, b.note = on, "by NVML, since "+process+" runs there"
	case len(b.cards) > 0:
		f.Off = true
	default:
		return process + " is on no GPU that NVML shows, so far"
	}
	return ""
}

// process finds who listens on the replica's port.
func (b *binding) process(now time.Time) error {
	if len(b.pids) > 0 && !slices.ContainsFunc(b.pids, func(pid int) bool { return !b.host.alive(pid) }) {
		return nil
	}
	if b.missing != nil && now.Sub(b.looked) < lookEvery {
		return b.missing
	}
	var p uint16
	if p, b.missing = port(b.target.URL); b.missing == nil {
		b.pids, b.missing = b.host.listeners(p)
	}
	if b.missing != nil {
		b.pids, b.looked = nil, now
	}
	return b.missing
}
