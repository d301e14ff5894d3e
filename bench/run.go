package bench

import (
	"context"
	"errors"
)

// RunLive runs one trial of a scenario against a target over real sockets.
func RunLive(ctx context.Context, s *Scenario, t Target, trial int, o LiveOptions) (*Trial, error) {
	return nil, errors.New("not yet")
}
