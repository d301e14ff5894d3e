package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"
)

//go:embed report.tmpl
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"svg":  func(s string) template.HTML { return template.HTML(s) },                            //nolint:gosec // drawn here, texts escaped
	"mark": func(id string) template.HTML { return template.HTML("<!-- bench " + id + " -->") }, //nolint:gosec // a checked name
	"name": func(t Table, i int) bool { return i < t.left },
	"cell": htmlCellText, "code": htmlCode,
}).Parse(pageText))

// html is report.html: one page with everything in it.
func (r *report) html() ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Name": r.name, "Note": r.note, "Facts": r.facts(), "Broken": r.broken(),
		"Tables": r.tables, "Figures": r.logs.figures(), "Long": len(r.tables[0].Rows) > 12,
	})
	if err != nil {
		return nil, fmt.Errorf("writing the page: %w", err)
	}
	return b.Bytes(), nil
}

// htmlCellText sets the range of a cell apart, below its median.
func htmlCellText(cell string) template.HTML {
	text := template.HTMLEscapeString(cell)
	if median, rest, ok := strings.Cut(text, " ("); ok && strings.HasSuffix(rest, ")") && strings.Contains(rest, " to ") {
		text = median + " <small>(" + rest + "</small>"
	}
	return template.HTML(text) //nolint:gosec // escaped above
}

// htmlCode sets what stands between backticks as code.
func htmlCode(text string) template.HTML {
	parts := strings.Split(template.HTMLEscapeString(text), "`")
	for i := 1; i < len(parts)-1; i += 2 {
		parts[i] = "<code>" + parts[i] + "</code>"
	}
	return template.HTML(strings.Join(parts, "")) //nolint:gosec // escaped above
}
