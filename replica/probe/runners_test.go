package probe

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// TestR11NamesOfOneDigestAreLoadedTogether: /api/ps lists one of them only.
func TestR11NamesOfOneDigestAreLoadedTogether(t *testing.T) {
	list := []replica.Model{
		{Name: "a:latest", Digest: "d1"},
		{Name: "b:latest", Digest: "d1", Resident: true, Context: 4096, PS: json.RawMessage("{}")},
		{Name: "c:latest", Digest: "d2"},
	}
	shareRunners(list)
	require.True(t, list[0].Resident)
	require.Equal(t, 4096, list[0].Context)
	require.Nil(t, list[0].PS, "it is not listed as loaded")
	require.False(t, list[2].Resident)
}
