package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// The formats of request traces.
const (
	Mooncake = "mooncake" // JSONL: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks
	Azure    = "azure"    // CSV: TIMESTAMP,ContextTokens,GeneratedTokens
)

// traced is one request of a trace.
type traced struct {
	at     time.Duration // since the first
	input  int
	output int
	blocks []int64 // Mooncake's ids, one for each 512 tokens; nil: nothing is known
}

// blockTokens is the size of the blocks that Mooncake's ids stand for.
const blockTokens = 512

// ReadTraces reads the files that the scenario's traffic replays. A file that is
// given replaces the scenario's own.
func (s *Scenario) ReadTraces(file string) error {
	s.Traffic = slices.Clone(s.Traffic)
	for i := range s.Traffic {
		t := &s.Traffic[i]
		if t.Kind != "trace" {
			continue
		}
		if file != "" {
			t.File = file
		}
		if t.File == "" {
			return fmt.Errorf("scenario %s: traffic[%d] replays a trace in %s's format: want its file, as file: in the scenario or by --trace", s.Name, i, t.Format)
		}
		f, err := os.Open(t.File)
		if err != nil {
			return fmt.Errorf("reading the trace of traffic[%d]: %w", i, err)
		}
		t.trace, err = readTrace(f, t.Format, t.Limit)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("reading the trace of traffic[%d]: %s: %w", i, t.File, err)
		}
	}
	return nil
}

// readTrace reads up to limit requests (0: all), sorted by time.
func readTrace(r io.Reader, format string, limit int) ([]traced, error) {
	parse := parseMooncake
	if format == Azure {
		parse = parseAzure
	}
	var all []traced
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan() && (limit == 0 || len(all) < limit); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if len(line) == 0 || n == 1 && format == Azure && bytes.HasPrefix(line, []byte("TIMESTAMP")) {
			continue
		}
		t, err := parse(line)
		if err == nil && (t.input < 1 || t.input > mostDraw || t.output < 0 || t.output > mostDraw) {
			err = fmt.Errorf("%d tokens in, %d out: want 1 and 0 to %d", t.input, t.output, mostDraw)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, t)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if all == nil {
		return nil, errors.New("no requests in it")
	}
	slices.SortStableFunc(all, func(a, b traced) int { return int(min(max(a.at-b.at, -1), 1)) })
	for i := len(all) - 1; i >= 0; i-- {
		all[i].at -= all[0].at
	}
	return all, nil
}

func parseMooncake(line []byte) (traced, error) {
	var m struct {
		Timestamp float64 `json:"timestamp"`
		Input     int     `json:"input_length"`
		Output    int     `json:"output_length"`
		Blocks    []int64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return traced{}, fmt.Errorf("want an object with timestamp, input_length, output_length and hash_ids: %w", err)
	}
	const most = 1e12 // ms: 30 years
	if !(m.Timestamp >= 0 && m.Timestamp <= most) {
		return traced{}, fmt.Errorf("timestamp %v: want milliseconds from 0", m.Timestamp)
	}
	if want := (m.Input + blockTokens - 1) / blockTokens; len(m.Blocks) > want {
		m.Blocks = m.Blocks[:max(0, want)]
	}
	return traced{at: durationOf(m.Timestamp / 1000), input: m.Input, output: m.Output, blocks: m.Blocks}, nil
}

func parseAzure(line []byte) (traced, error) {
	fields := strings.Split(string(line), ",")
	if len(fields) != 3 {
		return traced{}, fmt.Errorf("%d fields: want TIMESTAMP,ContextTokens,GeneratedTokens", len(fields))
	}
	at, err := time.Parse("2006-01-02 15:04:05", fields[0]) // takes a fraction, too
	if err != nil {
		return traced{}, fmt.Errorf("%q: want a time such as 2023-11-16 18:15:46.6805900", fields[0])
	}
	input, err1 := strconv.Atoi(strings.TrimSpace(fields[1]))
	output, err2 := strconv.Atoi(strings.TrimSpace(fields[2]))
	if err1 != nil || err2 != nil {
		return traced{}, fmt.Errorf("%q and %q: want numbers of tokens", fields[1], fields[2])
	}
	return traced{at: at.Sub(traceEpoch), input: input, output: output}, nil
}

// traceEpoch keeps the difference to any time of this century in a Duration.
var traceEpoch = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)

// replay is the i-th request of a trace.
func (x *source) replay(i int) *Request {
	line := x.trace[i]
	r := x.request(i)
	r.At = x.From + durationOf(line.at.Seconds()/x.Speed)
	left := line.input
	for _, id := range line.blocks {
		n := min(left, blockTokens)
		// Equal ids are equal blocks, in every trial and source.
		r.Prompt = append(r.Prompt, Part{Seed: blend(uint64(id), blockTokens), Tokens: n})
		left -= n
	}
	if left > 0 {
		r.Prompt = append(r.Prompt, Part{Seed: r.seed, Tokens: left})
	}
	r.Prompt[0].Role = RoleUser
	r.PromptTokens = line.input
	if r.MaxTokens == 0 {
		r.MaxTokens = max(1, line.output)
	}
	r.answer(max(1, line.output))
	return r
}
