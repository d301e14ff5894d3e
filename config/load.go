package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// maxFile keeps a wrong path (a model, a device) from filling the memory.
const maxFile = 16 << 20

// Load reads and checks a configuration file. The error joins a Problem for
// each mistake.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, &Problem{File: path, Err: err, Msg: err.Error()}
	}
	return Parse(path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no such file: want the path of a configuration (%w)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the file cannot be opened: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("the file cannot be read: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("the file is larger than %v: want a configuration", Size(maxFile))
	}
	return data, nil
}

// Parse checks a configuration that has been read already; name stands for the
// file in errors. An empty one is Default.
func Parse(name string, data []byte) (*Config, error) {
	root, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	c := Default()
	c.marks = marks{"": {name, 1, 1}}
	d := &decoder{report: report{marks: c.marks}, file: name}
	if root != nil {
		d.value("", root, reflect.ValueOf(c).Elem(), &field{})
	}
	c.check(&d.report)
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parseYAML gives the node of the one document there is, nil for none.
func parseYAML(name string, data []byte) (*yaml.Node, error) {
	if line := lineOfBadUTF8(data); line > 0 {
		return nil, &Problem{File: name, Line: line, Msg: "bytes that are not UTF-8: want a text in UTF-8"}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, &Problem{File: name, Err: err, Msg: "the YAML reader cannot start: " + err.Error()}
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntax(name, err)
	}
	switch err := loader.Load(&second); {
	case err == nil:
		return nil, &Problem{File: name, Line: second.Line, Column: second.Column, Msg: "a second document begins: want one"}
	case !errors.Is(err, io.EOF):
		return nil, syntax(name, err)
	}
	if len(first.Content) != 1 {
		return nil, nil
	}
	return first.Content[0], nil
}

// lineOfBadUTF8 gives the line of the first byte that is not UTF-8, 0 for none.
func lineOfBadUTF8(data []byte) int {
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			return i + 1
		}
	}
	return 0
}

// syntax turns what the YAML reader says into a problem.
func syntax(name string, err error) error {
	p := &Problem{File: name, Err: err, Msg: "this is not YAML: " + err.Error()}
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		p.Line, p.Column = e.Mark.Line, e.Mark.Column
		p.Msg = "this is not YAML: " + e.Message
		if e.ContextMsg != "" {
			p.Msg += " " + strings.TrimSpace(e.ContextMsg)
		}
		if e.ContextMark.Line > 0 && e.ContextMark.Line != p.Line {
			p.Msg += fmt.Sprintf(" that begins on line %d", e.ContextMark.Line)
		}
	}
	return p
}
