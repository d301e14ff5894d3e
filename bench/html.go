package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
)

//go:embed report.tmpl
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"svg":  func(s string) template.HTML { return template.HTML(s) },                            //nolint:gosec // drawn here, texts escaped
	"mark": func(id string) template.HTML { return template.HTML("<!-- bench " + id + " -->") }, //nolint:gosec // a checked name
	"name": func(t Table, i int) bool { return i < t.left },
}).Parse(pageText))

// html is report.html: one page with everything in it.
func (r *report) html() ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Name": r.name, "Note": r.note, "Facts": r.facts(), "Broken": r.broken(),
		"Tables": r.tables, "Figures": r.logs.figures(),
	})
	if err != nil {
		return nil, fmt.Errorf("writing the page: %w", err)
	}
	return b.Bytes(), nil
}
