package bench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// WriteTrial writes a trial's raw log into dir, in place of one that was there
// for the same target, load and trial.
func WriteTrial(dir string, s *Scenario, target string, trial int, t *Trial) (err error) {
	f, err := os.Create(filepath.Join(dir, rawName(target, s.Load, trial)))
	if err != nil {
		return fmt.Errorf("writing the raw log: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed := gzip.NewWriter(f) // without name and time: the same log is the same file
	out := bufio.NewWriterSize(packed, 1<<16)
	line := func(v any) {
		if err == nil {
			err = json.MarshalWrite(out, v)
		}
		if err == nil {
			err = out.WriteByte('\n')
		}
	}
	weights := make(map[string]float64)
	for _, k := range s.Keys.List {
		if k.Weight != 1 {
			weights[k.Name] = k.Weight
		}
	}
	for i := range t.Records {
		r := t.Records[i]
		r.Target, r.Trial, r.Load, r.Weight = target, trial, s.Load, weights[r.Key]
		r.ArrivalS, r.EndS = micro(r.ArrivalS), micro(r.EndS)
		r.FirstTokenS, r.RetryAfterS = microOrNone(r.FirstTokenS), microOrNone(r.RetryAfterS)
		line(&r)
	}
	for i := range t.Replicas {
		r := t.Replicas[i]
		r.Target, r.Trial, r.Load = target, trial, s.Load
		line(&r)
	}
	if err = errors.Join(err, out.Flush(), packed.Close()); err != nil {
		return fmt.Errorf("writing the raw log %s: %w", f.Name(), err)
	}
	return nil
}

// rawName is the file of one trial's raw log.
func rawName(target string, load float64, trial int) string {
	name := rawPrefix(target)
	if load != 0 {
		name += fmt.Sprintf("-x%g", load)
	}
	return fmt.Sprintf("%s-%d.jsonl.gz", name, trial)
}

func rawPrefix(target string) string {
	return "raw-" + strings.Map(func(r rune) rune {
		if plainName.MatchString("x" + string(r)) {
			return r
		}
		return '_'
	}, target)
}

var rawSuffix = regexp.MustCompile(`^(-x[0-9.e+-]+)?-[0-9]+\.jsonl\.gz$`)

// logOf reports whether a file has the name of a raw log of the target.
func logOf(name, target string) bool {
	rest, ok := strings.CutPrefix(name, rawPrefix(target))
	return ok && rawSuffix.MatchString(rest)
}

// micro rounds seconds to the microsecond: more would only fill the log.
func micro(s float64) float64 { return math.Round(s*1e6) / 1e6 }

func microOrNone(s *float64) *float64 {
	if s == nil {
		return nil
	}
	return new(micro(*s))
}

// rawFiles lists a directory's raw logs.
func rawFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading raw logs: %w", err)
	}
	var files []string
	for _, e := range entries {
		if n := e.Name(); !e.IsDir() && (strings.HasSuffix(n, ".jsonl") || strings.HasSuffix(n, ".jsonl.gz")) {
			files = append(files, filepath.Join(dir, n))
		}
	}
	slices.Sort(files)
	return files, nil
}

// openRaw opens a raw log, packed or not.
func openRaw(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil || !strings.HasSuffix(path, ".gz") {
		return f, err
	}
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{unpacked, f}, nil
}

// readRaw reads one raw log, line by line.
func readRaw(path string, request func(*Record), replica func(*ReplicaRecord)) error {
	in, err := openRaw(path)
	if err == nil {
		err = errors.Join(readLines(in, request, replica), in.Close())
	}
	if err != nil {
		return fmt.Errorf("reading the raw log %s: %w", path, err)
	}
	return nil
}

// readLines tells requests and replicas apart by what only a replica's line
// has: stats. A record is the caller's only until the next one.
func readLines(in io.Reader, request func(*Record), replica func(*ReplicaRecord)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<16), 16<<20)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if bytes.Contains(line, []byte(`"stats"`)) {
			var r ReplicaRecord
			if err := json.Unmarshal(line, &r); err != nil {
				return fmt.Errorf("line %d: want a replica's line: %w", n, err)
			}
			replica(&r)
			continue
		}
		var r Record
		err := json.Unmarshal(line, &r)
		switch {
		case err != nil:
			return fmt.Errorf("line %d: want a request's line: %w", n, err)
		case r.Target == "" || r.ID == "" || r.Trial < 1:
			return fmt.Errorf("line %d: want target, trial and id of a request, or stats of a replica", n)
		case r.OnTime != r.inTime():
			return fmt.Errorf("line %d: %s: on_time is %t, but status, error and times say %t", n, r.ID, r.OnTime, !r.OnTime)
		}
		request(&r)
	}
	return lines.Err()
}
