package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/simserver"
)

// A raw log has the interface's names, all of them on each line.
func TestRawLogNames(t *testing.T) {
	dir := t.TempDir()
	s := parse(t, strings.Replace(interfaceScenario, "keys: [] ", "keys: [{name: k, weight: 3}] ", 1)).At(1.5)
	trial := &Trial{
		Records:  []Record{{ID: "a1", ArrivalS: 0.12345678, Key: "k", Status: 200, FirstTokenS: new(0.5), DeadlineS: 1, EndS: 1, OnTime: true}},
		Replicas: []ReplicaRecord{{Replica: "r", Stats: simserver.Stats{Slots: 2}}},
	}
	require.NoError(t, WriteTrial(dir, s, "ha/proxy", 2, trial))
	require.Equal(t, []string{filepath.Join(dir, "raw-ha_proxy-x1.5-2.jsonl.gz")}, mustFiles(t, dir))
	plain := unpack(t, filepath.Join(dir, "raw-ha_proxy-x1.5-2.jsonl.gz"))
	request, replica, _ := strings.Cut(plain, "\n")
	for name := range strings.SplitSeq("target, trial, id, arrival_s, class, key, session, turn, prompt_tokens, max_tokens, deadline_s, status, code, retry_after_s, retried_of, first_token_s, end_s, output_tokens, cached_tokens, replica, attempts, error, on_time", ", ") {
		require.Contains(t, request, `"`+name+`":`)
	}
	require.Contains(t, request, `"target":"ha/proxy","trial":2,"load":1.5,"id":"a1","arrival_s":0.123457,`)
	require.Contains(t, request, `"weight":3`)
	require.Contains(t, request, `"retry_after_s":null`)
	require.Contains(t, replica, `"replica":"r","stats":{"slots":2,"in_hand":0,"max_in_hand":0,"over_slots_events":0,`)
	require.Equal(t, 0.12345678, trial.Records[0].ArrivalS, "the caller's own are as they were")
}

func mustFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := rawFiles(dir)
	require.NoError(t, err)
	return files
}

func unpack(t *testing.T, path string) string {
	t.Helper()
	var b bytes.Buffer
	err := readRaw(path, func(r *Record) {}, func(*ReplicaRecord) {})
	require.NoError(t, err)
	f, err := openRaw(path)
	require.NoError(t, err)
	defer f.Close()
	_, err = b.ReadFrom(f)
	require.NoError(t, err)
	return b.String()
}

// What is written is what is read, and the same trial is the same file.
func TestRawLogRoundTrip(t *testing.T) {
	s := parse(t, interfaceScenario)
	one, two := t.TempDir(), t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringMatching(`[a-z"\\ é|]{0,8}`)
		trial := &Trial{}
		for range rapid.IntRange(0, 5).Draw(rt, "records") {
			r := Record{
				Target: "x", Trial: 1, ID: "a" + text.Draw(rt, "id"), ArrivalS: micro(rapid.Float64Range(0, 1e5).Draw(rt, "arrival")), Class: text.Draw(rt, "class"),
				Status: rapid.SampledFrom([]int{0, 200, 429}).Draw(rt, "status"), Error: text.Draw(rt, "error"), DeadlineS: 10,
				NoRetry: rapid.Bool().Draw(rt, "no retry"),
			}
			if rapid.Bool().Draw(rt, "first") {
				r.FirstTokenS = new(micro(r.ArrivalS + rapid.Float64Range(0, 20).Draw(rt, "ttft")))
			}
			r.Judge()
			trial.Records = append(trial.Records, r)
		}
		trial.Replicas = []ReplicaRecord{{Target: "x", Trial: 1, Replica: text.Draw(rt, "replica"), Stats: simserver.Stats{Slots: 1, TokensWasted: 3}}}
		require.NoError(rt, WriteTrial(one, s, "x", 1, trial))
		require.NoError(rt, WriteTrial(two, s, "x", 1, trial))
		got := &Trial{}
		name := "raw-x-1.jsonl.gz"
		require.NoError(rt, readRaw(filepath.Join(one, name), func(r *Record) { got.Records = append(got.Records, *r) }, func(r *ReplicaRecord) { got.Replicas = append(got.Replicas, *r) }))
		require.Equal(rt, trial, got)
		a, err := os.ReadFile(filepath.Join(one, name))
		require.NoError(rt, err)
		b, err := os.ReadFile(filepath.Join(two, name))
		require.NoError(rt, err)
		require.Equal(rt, a, b)
	})
}

func TestMistakesInRawLogs(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":       {"{\n", "line 1: want a request's line"},
		"no request":    {"\n{}\n", "line 2: want target, trial and id of a request"},
		"no stats":      {`{"stats": 3}`, "line 1: want a replica's line"},
		"made up":       {`{"target":"x","trial":1,"id":"a","status":200,"first_token_s":11,"deadline_s":10,"on_time":true}`, "line 1: a: on_time is true, but status, error and times say false"},
		"made up, too":  {`{"target":"x","trial":1,"id":"a","status":200,"first_token_s":9,"deadline_s":10,"on_time":false}`, "line 1: a: on_time is false"},
		"twice a field": {`{"target":"x","target":"y","trial":1,"id":"a"}`, "line 1: want a request's line"},
	} {
		t.Run(name, func(t *testing.T) {
			err := readLines(strings.NewReader(c.text), func(*Record) {}, func(*ReplicaRecord) {})
			require.ErrorContains(t, err, c.want)
		})
	}
	dir := t.TempDir()
	_, err := readLogs(dir)
	require.ErrorContains(t, err, "has no raw logs")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.jsonl.gz"), []byte("not packed"), 0o600))
	_, err = readLogs(dir)
	require.ErrorContains(t, err, "x.jsonl.gz")
}

func TestLogsOfATarget(t *testing.T) {
	for name, want := range map[string]bool{
		"raw-switchyard-1.jsonl.gz": true, "raw-switchyard-x0.5-12.jsonl.gz": true, "raw-switchyard-no-slots-1.jsonl.gz": false,
		"raw-switchyard-x1e-05-1.jsonl.gz": true, "switchyard-1.jsonl.gz": false, "raw-switchyard-1.jsonl": false,
	} {
		require.Equal(t, want, logOf(name, "switchyard"), name)
	}
	require.True(t, logOf(rawName("switchyard-no-slots", 0, 3), "switchyard-no-slots"))
}

func FuzzReadLines(f *testing.F) {
	for line := range strings.SplitSeq(handMade, "\n") {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := &logs{trials: map[run]map[int]*tally{}}
		if readLines(strings.NewReader(text), l.request, l.replica) != nil || len(l.runs) == 0 {
			return
		}
		l.sort()
		r := &report{name: "x", logs: l, tables: l.tables("x")}
		_ = r.markdown()
		_, err := r.html()
		require.NoError(t, err)
	})
}
