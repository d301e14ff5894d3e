package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// R12: secrets never print.
func TestSecretsNeverPrint(t *testing.T) {
	s := NewSecret("hunter2")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{s, &s, []Secret{s}, map[string]Secret{"a": s}, struct{ S Secret }{s}, Secrets{Admin: s}} {
			require.NotContains(t, fmt.Sprintf(verb, v), "hunter2")
			require.NotContains(t, fmt.Sprintf(verb, v), "68756e74657232")
		}
	}
	text, err := json.Marshal(map[string]any{"s": s, "none": Secret{}})
	require.NoError(t, err)
	require.JSONEq(t, `{"s":"[secret]","none":""}`, string(text))

	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "s", s)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "s", s, "all", Secrets{Admin: s})
	require.NotContains(t, log.String(), "hunter2")

	require.Equal(t, "hunter2", s.Reveal())
	require.True(t, s.Set())
	require.False(t, Secret{}.Set())
}

func TestSecretsComeFromTheEnvironment(t *testing.T) {
	c := parse(t, `
admin: {token_env: ADMIN}
replicas:
  - {name: a, url: "http://a", api_key_env: KEY_A}
  - {name: b, url: "http://b"}
  - {name: c, url: "http://c", api_key_env: KEY_A}
`)
	env := map[string]string{"ADMIN": "hunter2", "KEY_A": "sk-1"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	s, err := c.Secrets(lookup)
	require.NoError(t, err)
	require.Equal(t, "hunter2", s.Admin.Reveal())
	require.Equal(t, map[string]Secret{"a": NewSecret("sk-1"), "c": NewSecret("sk-1")}, s.Replicas)

	env["ADMIN"] = "hunter2\n"
	delete(env, "KEY_A")
	_, err = c.Secrets(lookup)
	require.EqualError(t, err, ``+
		"f.yaml:2: admin.token_env: the environment variable ADMIN has a space, a line break or another character that no header takes: want the token alone\n"+
		"f.yaml:4: replicas[0].api_key_env: the environment variable KEY_A is not set: want it set to the token\n"+
		"f.yaml:6: replicas[2].api_key_env: the environment variable KEY_A is not set: want it set to the token")

	none, err := Default().Secrets(lookup)
	require.NoError(t, err)
	require.False(t, none.Admin.Set())
}
