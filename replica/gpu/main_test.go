package gpu

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs a part of a test in a process of its own where it is asked to:
// a library can be loaded only once.
func TestMain(m *testing.M) {
	if os.Getenv("NVML_STUB_LIBRARY") != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}
