package bench

import (
	"context"
	"errors"
)

// RunVirtual runs one trial, counted from 1, of a scenario against a target
// under a made-up clock. The same scenario, target and trial give the same
// records, byte for byte.
func RunVirtual(ctx context.Context, s *Scenario, t Target, trial int, o VirtualOptions) (*Trial, error) {
	return nil, errors.New("not yet")
}

// RunLive runs one trial of a scenario against a target over real sockets.
func RunLive(ctx context.Context, s *Scenario, t Target, trial int, o LiveOptions) (*Trial, error) {
	return nil, errors.New("not yet")
}
