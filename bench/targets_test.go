package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTarget(t *testing.T) {
	for name, want := range map[string]Target{
		"round-robin":                {Name: "round-robin", Kind: RoundRobin},
		"least-connections":          {Name: "least-connections", Kind: LeastConnections},
		"switchyard":                 {Name: "switchyard", Kind: Gateway},
		"switchyard-no-slots":        {Name: "switchyard-no-slots", Kind: Gateway, Without: "slots"},
		"pinned":                     {Name: "pinned", Kind: Pinned},
		"switchyard-no-gpu":          {Name: "switchyard-no-gpu", Kind: Gateway, Without: "gpu"},
		"switchyard-oracle":          {Name: "switchyard-oracle", Kind: Oracle},
		"url:haproxy=http://[::1]:1": {Name: "haproxy", Kind: External, URL: "http://[::1]:1"},
		"url:x=https://h/prefix/":    {Name: "x", Kind: External, URL: "https://h/prefix"},
	} {
		got, err := ParseTarget(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"", "haproxy", "switchyard-no-", "switchyard-no-queue", "url:x", "url:=http://h", "url:x=ftp://h", "url:x=http://"} {
		_, err := ParseTarget(name)
		require.ErrorContains(t, err, "want", "%q", name)
	}
}
