package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplicaFlag(t *testing.T) {
	auto := Replica{Engine: "auto", GPU: GPU{Mode: GPUAuto}}
	with := func(change func(*Replica)) Replica {
		r := auto
		change(&r)
		return r
	}
	for flag, want := range map[string]Replica{
		"http://127.0.0.1:8080": with(func(r *Replica) { r.Name, r.URL = "127.0.0.1:8080", "http://127.0.0.1:8080" }),
		"https://host/a=b/v1":   with(func(r *Replica) { r.Name, r.URL = "host:443", "https://host/a=b" }),
		"gpu0=http://127.0.0.1:8080,engine=llamacpp,slots=4": with(func(r *Replica) {
			r.Name, r.URL, r.Engine, r.Slots = "gpu0", "http://127.0.0.1:8080", "llamacpp", Slots{"*": 4}
		}),
		"http://h:1,models=qwen3:8b|70,slots=auto,tier=1,cache_tokens=9": with(func(r *Replica) {
			r.Name, r.URL, r.Models, r.Tier, r.CacheTokens = "h:1", "http://h:1", ModelNames{"qwen3:8b", "70"}, 1, 9
		}),
		"9=https://h,models=auto,api_key_env=KEY,ca_file=a=b.pem,cache_tokens=auto": with(func(r *Replica) {
			r.Name, r.URL, r.APIKeyEnv, r.CAFile = "9", "https://h", "KEY", "a=b.pem"
		}),
		"http://h:1,models=*": with(func(r *Replica) { r.Name, r.URL, r.Models = "h:1", "http://h:1", ModelNames{"*"} }),
	} {
		got, err := ParseReplicaFlag(flag)
		require.NoError(t, err, flag)
		require.Equal(t, want, got, flag)
	}
}

func TestWrongReplicaFlag(t *testing.T) {
	const url = "want http://HOST:PORT or https://HOST:PORT, with a path where the server has one"
	for flag, want := range map[string]string{
		"":               "--replica: url: missing: " + url,
		"127.0.0.1:8080": "--replica 127.0.0.1:8080: url: this has no scheme: " + url,
		"gpu0=":          "--replica gpu0=: url: missing: " + url,
		"=http://h":      "--replica =http://h: name: nothing stands before the =: want NAME=URL, or the URL alone\n--replica =http://h: url: missing: " + url,
		"http://h,slot=4,engine=x,tier": "--replica http://h,slot=4,engine=x,tier: slot: unknown option: the nearest is slots; a flag takes engine, slots, models, tier, api_key_env, ca_file, cache_tokens\n" +
			"--replica http://h,slot=4,engine=x,tier: tier: no value: want tier=VALUE\n" +
			`--replica http://h,slot=4,engine=x,tier: engine: "x" is not known: want one of auto, ollama, llamacpp, vllm, openai`,
		"http://h,slots=1,slots=0":     "--replica http://h,slots=1,slots=0: slots: given twice: want it once",
		"http://h,slots=many":          `--replica http://h,slots=many: slots: the text "many" is wrong here: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}`,
		"a=http://me:hunter2@h":        "--replica: url: a user name or password does not belong into the URL; api_key_env names a variable for it: " + url,
		"http://h,ca_file=a,models=a|": "--replica http://h,ca_file=a,models=a|: models[1]: \"\" is no model name: want 1 to 256 characters on one line",
	} {
		_, err := ParseReplicaFlag(flag)
		require.EqualError(t, err, want, flag)
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	file := parse(t, `
listen: 127.0.0.1:1
replicas:
  - {name: a, url: "http://one:1", slots: 2}
  - {name: b, url: "http://two:1", slots: 2}
`)
	c, err := file.With(Flags{Listen: ":9", AdminListen: "127.0.0.1:8", Replicas: []string{
		"a=http://three:1,slots=4", "b2=http://two:1/v1", "http://four:1",
	}})
	require.NoError(t, err)
	require.Equal(t, ":9", c.Listen)
	require.Equal(t, "127.0.0.1:8", c.Admin.Listen)
	var got []string
	for _, r := range c.Replicas {
		got = append(got, r.Name+" "+r.URL+" "+r.Slots.String())
	}
	require.Equal(t, []string{"a http://three:1 4", "b2 http://two:1 auto", "four:1 http://four:1 auto"}, got)

	require.Equal(t, "127.0.0.1:1", file.Listen, "the file's own configuration stays")
	require.Equal(t, "http://one:1", file.Replicas[0].URL)
	require.Equal(t, 2, file.marks["listen"].line, "and so do its places")

	same, err := file.With(Flags{})
	require.NoError(t, err)
	require.True(t, Changes(file, same).Empty())
}

// What the flags break is said of the flag, what the file breaks of the file.
func TestWrongFlags(t *testing.T) {
	file := parse(t, "replicas: [{name: a, url: 'http://127.0.0.1:9'}]\n")
	_, err := file.With(Flags{AdminListen: ":8701", Listen: "8700", Replicas: []string{"h", "http://x", "http://x"}})
	require.EqualError(t, err, ``+
		"--replica h: url: this has no scheme: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one\n"+
		"--listen: listen: \"8700\" is a port without the colon before it: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface\n"+
		"--replica http://x: replicas[2].url: the same as replicas[1].url: want each server once")

	_, err = file.With(Flags{AdminListen: ":8701", Listen: "127.0.0.1:9"})
	require.EqualError(t, err, ``+
		"--admin-listen: admin.listen: :8701 is open to other machines and has no token: want admin.token_env, or a loopback address such as 127.0.0.1:8701\n"+
		"f.yaml:1: replicas[0].url: http://127.0.0.1:9 is this gateway's own address (listen: 127.0.0.1:9): want the address of an inference server")

	_, err = Default().With(Flags{Replicas: []string{"http://localhost:8700"}})
	require.EqualError(t, err, "--replica http://localhost:8700: replicas[0].url: http://localhost:8700 is this gateway's own address (listen: 127.0.0.1:8700): want the address of an inference server")
}

// R17: which sockets are the same, as far as addresses tell.
func TestSameSocket(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "localhost:1", true},
		{"localhost:1", "[::1]:1", true},
		{"127.0.0.1:1", "[::1]:1", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"127.0.0.1:1", "[::ffff:127.0.0.1]:1", true},
		{":1", "127.0.0.2:1", true},
		{"0.0.0.0:1", "localhost:1", true},
		{"[::]:1", "0.0.0.0:1", true},
		{":1", "10.0.0.1:1", false}, // it may be, but only the network interfaces know
		{"10.0.0.1:1", "10.0.0.1:1", true},
		{"gw:1", "gw:1", true},
		{"gw:1", "localhost:1", false},
		{"127.0.0.1:0", "127.0.0.1:0", false}, // the system chooses two
		{"nonsense", "nonsense", false},
	} {
		require.Equal(t, c.want, sameSocket(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, sameSocket(c.b, c.a), "%s %s", c.b, c.a)
	}
}
