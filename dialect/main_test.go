package dialect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture reads an exchange with a real server.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return b
}

// at finds an endpoint that must exist.
func at(t testing.TB, path string) *Endpoint {
	t.Helper()
	ep, ok := Lookup(path)
	require.True(t, ok, path)
	return ep
}
