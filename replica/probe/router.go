package probe

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"switchyard/replica"
)

// maxLooks bounds how many models of a router are looked at in one round.
const maxLooks = 8

// askRouter asks a llama.cpp in router mode: one server in front of a process
// for each model, which it loads when asked for. /v1/models tells what is
// loaded and wakes nobody; /slots is then asked of each loaded model (with
// autoload=false, so that asking loads nothing, and never of a sleeping one,
// which that would not protect). Each model has slots of its own: the smallest
// number holds for whichever is asked next.
func (l *llama) askRouter(ctx context.Context, f *replica.Facts, look bool) error {
	f.Version = l.props.Build
	a, err := l.http.get(ctx, "/v1/models")
	if err != nil {
		f.Note, err = alive(ctx, l.http, "/health", err)
		l.list.put(f)
		return err
	}
	if err := a.broken(); err != nil {
		return err
	}
	entries, ok := readOpenAIList(a)
	if !ok {
		if f.Note = a.refused(l.http); f.Note == "" {
			f.Note = "GET /v1/models is no list of models: " + a.summary()
		}
		return nil
	}
	l.list.models, l.list.read = models(entries), true
	l.list.put(f)
	var loaded []string
	for i, e := range entries {
		m := &f.Models[i]
		m.Resident = e.Status.Value == "loaded"
		if n := l.contexts[m.Name]; n > 0 {
			m.Context = n
		}
		if m.Resident {
			loaded = append(loaded, m.Name)
		}
		if e.Status.Value == "sleeping" || slices.Contains(e.Status.Args, "--sleep-idle-seconds") {
			l.drowsy.sleeper = true
		}
	}
	return l.lookAtModels(ctx, f, loaded, look)
}

// lookAtModels asks each loaded model for its slots, and adds them up.
func (l *llama) lookAtModels(ctx context.Context, f *replica.Facts, loaded []string, look bool) error {
	now := time.Now()
	if names := strings.Join(loaded, "\n"); names != l.loaded {
		l.loaded = names
		l.drowsy.woke()
	}
	if len(loaded) == 0 {
		f.InHand, f.Waiting = 0, 0
		return nil
	}
	if l.noSlots || len(loaded) > maxLooks || !look && l.drowsy.let(now) {
		l.knownSlots(f, loaded)
		return nil
	}
	if l.slots == nil {
		l.slots, l.contexts = map[string]int{}, map[string]int{}
	}
	for _, name := range loaded {
		slots, err := l.readSlots(ctx, "?autoload=false&model="+url.QueryEscape(name), f)
		if err != nil || len(slots) == 0 {
			// One model's process may be busy or just gone; the router answers.
			f.InHand = -1
			l.knownSlots(f, loaded)
			return nil
		}
		l.countSlots(f, name, slots)
		l.slots[name], l.contexts[name] = len(slots), max(0, slots[0].Context)
		for i := range f.Models {
			if f.Models[i].Name == name {
				f.Models[i].Context = l.contexts[name]
			}
		}
	}
	l.looks++
	l.drowsy.looked(now, f.InHand)
	return nil
}

// knownSlots repeats the slots that the loaded models had when looked at.
func (l *llama) knownSlots(f *replica.Facts, loaded []string) {
	f.Slots = 0
	for _, name := range loaded {
		if n := l.slots[name]; n > 0 && (f.Slots == 0 || n < f.Slots) {
			f.Slots = n
		}
	}
}
