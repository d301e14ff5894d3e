//go:build !linux || !cgo

package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func child() int { panic("no library without cgo") }

// R16: the same source without cgo says what it lacks.
func TestR16WithoutCgo(t *testing.T) {
	_, err := openLibrary("")
	require.ErrorContains(t, err, "name an exporter")
}
