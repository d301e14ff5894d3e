package telemetry

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rules and the Grafana dashboard ask for metrics that there are.
func TestDeployedQueriesAskForMetricsThatThereAre(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	rules, err := os.ReadFile("../deploy/prometheus/rules.yml")
	require.NoError(t, err)
	board, err := os.ReadFile("../deploy/grafana/dashboards/switchyard.json")
	require.NoError(t, err)
	names := regexp.MustCompile(`\b(?:switchyard|gen_ai)_[a-z_]+\b`).FindAllString(string(rules)+string(board), -1)
	require.Greater(t, len(names), 20)
	for _, name := range names {
		family := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			family = strings.TrimSuffix(family, suffix)
		}
		require.Contains(t, string(source), `"`+family+`"`, name)
	}
	recorded := regexp.MustCompile(`\bswitchyard:[a-z0-9_:]+\b`)
	for _, name := range recorded.FindAllString(string(board), -1) {
		require.Contains(t, string(rules), "record: "+name+"\n")
	}
}
