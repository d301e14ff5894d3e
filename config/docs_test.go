package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reference is the page that explains every key.
func reference(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../docs/configuration.md")
	require.NoError(t, err)
	return string(data)
}

// referenceFile is the whole file that the page shows.
func referenceFile(t *testing.T) *Config {
	t.Helper()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(reference(t))
	require.NotNil(t, block, "no YAML block")
	c, err := Parse("docs/configuration.md", []byte(block[1]))
	require.NoError(t, err)
	return c
}

// Every key of the schema stands in the file that the page shows, and the
// strict parser has seen that nothing else does.
func TestDocumentedFileHasEveryKey(t *testing.T) {
	c := referenceFile(t)
	for _, place := range places("", reflect.TypeFor[Config]()) {
		require.True(t, c.marks.has(strings.ReplaceAll(place, "[]", "[0]")), "%s is not in the file", place)
	}
}

// What is not an example is the default.
func TestDocumentedFileIsTheDefault(t *testing.T) {
	c, d := referenceFile(t), Default()
	example := Replica{}
	example.setDefaults()
	example.Name, example.URL = "gpu0", "http://127.0.0.1:11434"
	require.Equal(t, []Replica{example}, c.Replicas)
	require.Equal(t, map[string][]string{"chat": {"qwen3:8b", "qwen3:4b"}}, c.Models)
	require.Len(t, c.Keys.List, 1)
	c.Replicas, c.Models, c.Keys.List = nil, nil, nil
	require.Equal(t, "nothing changed", Changes(d, c).String())
	require.True(t, Changes(d, c).Empty())
}

// Every key has a row with its default, its range, and a word where a reload
// cannot change it or nothing acts upon it yet.
func TestDocumentedTables(t *testing.T) {
	rows := map[string][2]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.\\[\\]]+)` \\| (.+?) \\| (.+) \\|$").FindAllStringSubmatch(reference(t), -1) {
		require.NotContains(t, rows, m[1], "two rows")
		rows[m[1]] = [2]string{strings.Trim(m[2], "`"), strings.ToLower(m[3])}
	}
	var seen int
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for _, f := range sectionOf(v.Type()) {
			at, x := join(path, f.name), v.Field(f.index)
			switch {
			case isSection(x.Type()):
				walk(at, x)
				continue
			case x.Kind() == reflect.Slice && isSection(x.Type().Elem()):
				e := reflect.New(x.Type().Elem())
				e.Interface().(interface{ setDefaults() }).setDefaults()
				walk(at+"[]", e.Elem())
				continue
			}
			row, ok := rows[at]
			require.True(t, ok, "%s has no row", at)
			seen++
			require.Equal(t, documentedDefault(at, x, &f), row[0], "default of %s", at)
			require.Equal(t, f.restart, strings.Contains(row[1], "needs a restart"), "restart of %s", at)
			if f.in != nil {
				require.Contains(t, row[1], strings.ToLower(f.in.String()), "range of %s", at)
			}
			if f.oneof != nil {
				require.Contains(t, row[1], "one of "+strings.Join(f.oneof, ", "), "words of %s", at)
			}
		}
	}
	walk("", reflect.ValueOf(Default()).Elem())
	require.Len(t, rows, seen, "rows of keys that are not there")
}

func documentedDefault(path string, v reflect.Value, f *field) string {
	switch {
	case path == "models":
		return "none"
	case path == "replicas[].name":
		return "host:port of the URL"
	case f.need && v.IsZero():
		return "required"
	case f.zero != "" && v.IsZero():
		return f.zero
	}
	return show(v)
}
