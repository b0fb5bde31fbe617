// Command site renders the pages of the repository as a static site with search:
// `make site`. Pages keep their places: only the ends of their names change.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// sources are what links to other files than pages lead to.
const sources = "https://github.com/cleatproject/cleat/blob/main/"

//go:embed page.html
var layout string

//go:embed site.css
var style []byte

//go:embed site.js
var script []byte

func main() {
	from := flag.String("from", ".", "root directory of the repository")
	into := flag.String("into", "bin/site", "directory of the site, created or replaced")
	flag.Parse()
	if err := build(*from, *into); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// site is the pages of the repository, by their paths in it.
type site struct {
	root     string
	markdown goldmark.Markdown
	sources  map[string][]byte
	sections []section
}

// section is what the search finds.
type section struct {
	URL     string `json:"url"`
	Page    string `json:"page"`
	Heading string `json:"heading"`
	Text    string `json:"text"`
}

func build(root, into string) error {
	s := &site{root: root, sources: map[string][]byte{}}
	s.markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/chart/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, file := range found {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			s.sources[filepath.ToSlash(name)] = content
		}
	}
	if len(s.sources) < 10 {
		return fmt.Errorf("only %d pages below %s: -from names the root directory of the repository", len(s.sources), root)
	}
	files := map[string][]byte{"site.css": style, "site.js": script}
	page, err := template.New("page").Parse(layout)
	if err != nil {
		return err
	}
	kinds := s.kinds()
	for _, name := range s.names() {
		body, err := s.render(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var out bytes.Buffer
		err = page.Execute(&out, map[string]any{
			"Title": title(s.sources[name]), "Root": strings.Repeat("../", strings.Count(name, "/")), "Body": template.HTML(body), //nolint:gosec // from the repository
			"Kinds": kinds, "Self": target(name),
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files[target(name)] = out.Bytes()
	}
	diagrams, err := filepath.Glob(filepath.Join(root, "docs/diagrams/*.svg"))
	if err != nil {
		return err
	}
	for _, file := range diagrams {
		if files["docs/diagrams/"+filepath.Base(file)], err = os.ReadFile(file); err != nil {
			return err
		}
	}
	if files["search.json"], err = json.Marshal(s.sections); err != nil {
		return err
	}
	return write(into, files)
}

// write replaces a site, and nothing else: a directory without its style is not one.
func write(into string, files map[string][]byte) error {
	left, err := os.ReadDir(into)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(into, "site.css")); len(left) > 0 && err != nil {
		return fmt.Errorf("%s has other files: name an empty directory", into)
	}
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	for name, content := range files {
		file := filepath.Join(into, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) names() []string {
	var all []string
	for name := range s.sources {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// target is the file of a page in the site.
func target(name string) string {
	dir, file := path.Split(name)
	if file == "README.md" {
		return dir + "index.html"
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

func title(page []byte) string {
	for line := range strings.Lines(string(page)) {
		if heading, ok := strings.CutPrefix(line, "# "); ok {
			return strings.ReplaceAll(strings.TrimSpace(heading), "`", "")
		}
	}
	return ""
}

// kind is a group of pages in the navigation.
type kind struct {
	Name  string
	Pages []entry
}

type entry struct{ Title, URL string }

// kinds reads the navigation from the index of the documentation: its sections, and
// the pages to which the tables below link.
func (s *site) kinds() []kind {
	const index = "docs/README.md"
	var all []kind
	seen := map[string]bool{}
	doc := s.markdown.Parser().Parse(text.NewReader(s.sources[index]))
	walk(doc, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				name, _, _ := strings.Cut(plain(n, s.sources[index]), ":")
				all = append(all, kind{Name: name})
			}
		case *ast.Link:
			to := path.Join(path.Dir(index), string(n.Destination))
			if s.sources[to] != nil && len(all) > 0 && !seen[to] {
				seen[to] = true
				last := &all[len(all)-1]
				last.Pages = append(last.Pages, entry{title(s.sources[to]), target(to)})
			}
		}
	})
	return all
}

func walk(doc ast.Node, visit func(ast.Node)) {
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // visit returns no error
		if entering {
			visit(n)
		}
		return ast.WalkContinue, nil
	})
}

// plain returns the text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	walk(n, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			b.Write(n.Lines().Value(source))
		}
		if n.Type() == ast.TypeBlock {
			b.WriteByte(' ')
		}
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// render returns the HTML of a page, and adds its sections to the search.
func (s *site) render(name string) (string, error) {
	source := s.sources[name]
	doc := s.markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(anchors{}))))
	here := section{URL: target(name), Page: title(source)}
	var body strings.Builder
	end := func() {
		if here.Text = strings.TrimSpace(body.String()); here.Text != "" || here.Heading != "" {
			s.sections = append(s.sections, here)
		}
		body.Reset()
	}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level > 1 {
			end()
			id, _ := h.AttributeString("id")
			here = section{URL: fmt.Sprintf("%s#%s", target(name), id), Page: here.Page, Heading: plain(h, source)}
			continue
		}
		body.WriteString(plain(n, source) + " ")
	}
	end()
	walk(doc, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Link:
			n.Destination = []byte(s.link(name, string(n.Destination)))
		case *ast.Image:
			n.Destination = []byte(s.link(name, string(n.Destination)))
		}
	})
	var out bytes.Buffer
	err := s.markdown.Renderer().Render(&out, source, doc)
	return out.String(), err
}

// link returns where a link of a page leads in the site: to another page, to a
// diagram, or to the file in the repository.
func (s *site) link(from, to string) string {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "#") {
		return to
	}
	file, anchor, found := strings.Cut(to, "#")
	file = path.Join(path.Dir(from), file)
	if found {
		anchor = "#" + anchor
	}
	up := strings.Repeat("../", strings.Count(from, "/"))
	switch {
	case s.sources[file] != nil:
		return up + target(file) + anchor
	case path.Ext(file) == ".svg":
		return up + file
	case s.sources[path.Join(file, "README.md")] != nil:
		return up + target(path.Join(file, "README.md")) + anchor
	}
	return sources + file + anchor
}

// anchors gives headings the anchors of the usual forges.
type anchors map[string]int

func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return -1
	}, strings.ToLower(string(value)))
	a[id]++
	if n := a[id]; n > 1 {
		return fmt.Appendf(nil, "%s-%d", id, n-1)
	}
	return []byte(cmp.Or(id, "section"))
}

func (a anchors) Put(value []byte) { a[string(value)]++ }
