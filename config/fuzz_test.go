package config

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse: no file makes the parser panic; every problem is one line that
// lies in the file; and a good configuration stays what it is when it is
// parsed, checked or overlaid with nothing again.
func FuzzParse(f *testing.F) {
	for _, c := range wrong {
		f.Add([]byte(c.file))
	}
	page, err := os.ReadFile("../docs/configuration.md")
	require.NoError(f, err)
	f.Add(regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)[1])
	f.Add([]byte("a: &a [*a]\nb: {<<: *a}\n"))
	f.Add([]byte("%YAML 1.2\n--- !!map {? listen : |\n :1\n}\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err != nil {
			require.Nil(t, c)
			checkProblems(t, err, strings.Count(string(data), "\n")+strings.Count(string(data), "\r")+2)
			return
		}
		again, err := Parse("f", data)
		require.NoError(t, err)
		require.Equal(t, c, again)
		require.NoError(t, again.Validate())
		require.Equal(t, c, again)
		same, err := c.With(Flags{})
		require.NoError(t, err)
		require.Equal(t, c, same)
		next, diff := Reload(c, again)
		require.True(t, diff.Empty())
		require.Equal(t, c, next)
		for _, line := range c.Warnings() {
			require.NotContains(t, line, "\n")
		}
	})
}

func checkProblems(t *testing.T, err error, lines int) {
	t.Helper()
	problems := []error{err}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		problems = joined.Unwrap()
	}
	for _, e := range problems {
		p, ok := errors.AsType[*Problem](e)
		require.True(t, ok, "%T", e)
		require.NotContains(t, p.Error(), "\n")
		require.LessOrEqual(t, p.Line, lines)
		require.NotEmpty(t, p.Msg)
	}
}

// FuzzReplicaFlag: no flag makes the parser panic, and a good replica is the
// same when its normal form is parsed.
func FuzzReplicaFlag(f *testing.F) {
	f.Add("gpu0=http://127.0.0.1:8080,engine=llamacpp,slots=4")
	f.Add("http://[::1]:80/v1/,models=a|b,tier=1,cache_tokens=auto")
	f.Add("=,=,=")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseReplicaFlag(text)
		if err != nil {
			checkProblems(t, err, 0)
			return
		}
		again, err := ParseReplicaFlag(r.Name + "=" + r.URL)
		require.NoError(t, err)
		require.Equal(t, r.URL, again.URL)
		require.Equal(t, r.Name, again.Name)
	})
}
