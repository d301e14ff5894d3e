package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"switchyard/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outcome is what a command line came to.
type outcome struct {
	code     int
	out, err string
}

func command(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, &console{Out: &out, Err: &errs})
	return outcome{code, out.String(), errs.String()}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "switchyard.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestUsage(t *testing.T) {
	t.Setenv("SWITCHYARD_CONFIG", "")
	require.NoError(t, os.Unsetenv("SWITCHYARD_CONFIG"))
	for _, args := range [][]string{{}, {"chekc"}, {"check"}, {"check", "a", "b"}, {"check", "--nope", "a"}, {"key"}, {"key", "new"}, {"key", "old", "a"}, {"version", "a"}, {"--nope"}} {
		got := command(t, args...)
		require.Equal(t, exitUsage, got.code, "%v", args)
		require.Empty(t, got.out, "%v", args)
		require.Contains(t, got.err, "--help", "%v", args)
		require.True(t, strings.HasPrefix(got.err, "switchyard: "), "%v: %s", args, got.err)
	}
}

func TestHelpEverywhere(t *testing.T) {
	for _, args := range [][]string{{}, {"sim"}, {"check"}, {"key"}, {"key", "new"}, {"version"}} {
		for _, flag := range []string{"--help", "-h"} {
			got := command(t, append(args, flag)...)
			require.Equal(t, outcome{exitWell, got.out, ""}, got, "%v", args)
			require.True(t, strings.HasPrefix(got.out, "Usage: switchyard"), "%v: %s", args, got.out)
		}
	}
	all := command(t, "--help").out
	for _, name := range []string{"sim", "check", "key new", "version"} {
		require.Contains(t, all, "\n  "+name)
	}
}

func TestCheckSaysWhatIsConfigured(t *testing.T) {
	path := file(t, `
listen: 0.0.0.0:8700
replicas:
  - {name: gpu0, url: "http://127.0.0.1:8080/v1", engine: llamacpp, slots: 4}
  - {url: "http://127.0.0.1:11434", slots: {qwen3:8b: 2}, models: [qwen3:8b], api_key_env: SWITCHYARD_TEST_NOT_SET}
models: {chat: [qwen3:8b]}
keys:
  list:
    - {name: a, sha256: "0000000000000000000000000000000000000000000000000000000000000001", max_running: 1}
`)
	require.Equal(t, outcome{exitWell, path + `: well
  data plane  http://0.0.0.0:8700
  admin       http://127.0.0.1:8701
  replicas    2
              gpu0 http://127.0.0.1:8080 (engine llamacpp, slots 4, models auto)
              127.0.0.1:11434 http://127.0.0.1:11434 (engine auto, slots {"qwen3:8b": 2}, models [qwen3:8b])
  classes     interactive 10s, standard 1m (default), batch 15m
  aliases     1
  keys        1, optional
note: listen 0.0.0.0:8700 is open to other machines and keys.required is false: anybody who reaches it can use the replicas
note: ` + path + `:5: replicas[1].api_key_env: the environment variable SWITCHYARD_TEST_NOT_SET is not set: want it set to the token (not here now; serve will not start without it)
`, ""}, command(t, "check", path))
}

func TestCheckNamesCertificatesThatAreNotThere(t *testing.T) {
	path := file(t, "tls: {cert: /none/c.pem, key: /none/k.pem}\nreplicas:\n  - {url: 'https://127.0.0.1:1', ca_file: /none/ca.pem}\n")
	got := command(t, "check", path)
	require.Equal(t, exitWell, got.code)
	require.Contains(t, got.out, "note: tls: open /none/c.pem: no such file or directory")
	require.Contains(t, got.out, "note: replicas[0].ca_file: stat /none/ca.pem: no such file or directory")
}

func TestCheckSaysWhatServeWouldMiss(t *testing.T) {
	require.Contains(t, command(t, "check", file(t, "models: {a: [b]}\n")).out, "note: replicas: there is none")
}

func TestCheckSaysAllThatIsWrong(t *testing.T) {
	path := file(t, "listne: x\nqueue: {max_requests: 0}\nreplicas:\n  - {url: 'http://127.0.0.1:8700'}\n")
	require.Equal(t, outcome{
		exitUsage, "", path + ":1: listne: unknown key: the nearest known key is listen\n" +
			path + ":2: queue.max_requests: 0 is out of range: want a whole number from 1 to 1000000\n" +
			path + ":4: replicas[0].url: http://127.0.0.1:8700 is this gateway's own address (listen: 127.0.0.1:8700): want the address of an inference server\n",
	}, command(t, "check", path))

	got := command(t, "check", path+".missing")
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.err, path+".missing: there is no such file")
}

func TestConfigurationFromTheEnvironment(t *testing.T) {
	path := file(t, "listen: :1\n")
	t.Setenv("SWITCHYARD_CONFIG", path)
	got := command(t, "check")
	require.Equal(t, exitWell, got.code, got.err)
	require.Contains(t, got.out, path+": well\n")

	other := file(t, "listen: :2\n")
	require.Contains(t, command(t, "check", other).out, other+": well\n")
}

// R12: a key is shown once and kept as its hash.
func TestKeyNew(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		got := command(t, "key", "new", "team-a")
		require.Equal(t, exitWell, got.code, got.err)
		keys := regexp.MustCompile(`sw-[a-z0-9]+`).FindAllString(got.out, -1)
		require.Len(t, keys, 1)
		require.GreaterOrEqual(t, len(keys[0]), 26)
		require.False(t, seen[keys[0]])
		seen[keys[0]] = true

		// What it prints from "keys:" on is a configuration.
		c, err := config.Parse("printed", []byte(got.out[strings.Index(got.out, "\nkeys:"):]))
		require.NoError(t, err)
		sum := sha256.Sum256([]byte(keys[0]))
		require.Equal(t, "team-a", c.Keys.List[0].Name)
		require.Equal(t, hex.EncodeToString(sum[:]), c.Keys.List[0].SHA256)
	}
	for _, name := range []string{"anonymous", "a b", "", strings.Repeat("a", 65)} {
		got := command(t, "key", "new", name)
		require.Equal(t, exitUsage, got.code, name)
		require.Empty(t, got.out)
		require.Contains(t, got.err, "want 1 to 64 letters", name)
	}
}

func TestVersion(t *testing.T) {
	got := command(t, "version")
	require.Equal(t, exitWell, got.code)
	require.Regexp(t, `^switchyard \S+\ncommit .+\n`+regexp.QuoteMeta(runtime.Version())+` \S+/\S+\n$`, got.out)

	version, commit = "v9.8.7", "abc123"
	defer func() { version, commit = "", "" }()
	require.Contains(t, command(t, "version").out, "switchyard v9.8.7\ncommit abc123\n")
}

// The codes also leave the process.
func TestExitCodesOfTheBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	bin := filepath.Join(t.TempDir(), "switchyard")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for code, args := range map[int][]string{0: {"check", file(t, "")}, 2: {"check", file(t, "x: y")}} {
		cmd := exec.Command(bin, args...)
		_ = cmd.Run()
		require.Equal(t, code, cmd.ProcessState.ExitCode(), "%v", args)
	}
}
