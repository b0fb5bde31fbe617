package main

import (
	"path/filepath"
	"regexp"
	"strings"
)

type kind int

const (
	other    kind = iota
	source        // Go
	page          // Markdown
	manifest      // YAML, templates: the whole text
	script        // comments, and what a script prints
	contract      // comments of a .proto file: its names are published
)

func kindOf(name string) kind {
	switch filepath.Ext(name) {
	case ".go":
		return source
	case ".md":
		return page
	case ".yaml", ".yml", ".tpl", ".txt":
		return manifest
	case ".sh":
		return script
	case ".proto":
		return contract
	}
	if dir := filepath.Dir(name); dir == "scripts" || name == "Makefile" || name == ".ci/run" {
		return script
	}
	return other
}

// textOf returns what is checked of a file, with its lines.
func textOf(name, content string) string {
	switch kindOf(name) {
	case source:
		return nextWord.ReplaceAllString(notText.ReplaceAllString(content, ""), "$1 $2")
	case page:
		return prose(content)
	case contract:
		return notComment.ReplaceAllString(content, "")
	default:
		return content
	}
}

var code = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`\n]+`")

// prose blanks the code of a page and keeps its lines.
func prose(page string) string {
	return code.ReplaceAllStringFunc(page, func(s string) string { return "`" + strings.Repeat("\n", strings.Count(s, "\n")) + "`" })
}

// notComment is what is not checked of a .proto file.
var notComment = regexp.MustCompile(`(?m)^(?:[^/\n]|/[^/\n])*(?://|$)`)

// notText is what is not checked of a Go file: imports, directives, the keys of
// fields, names of other packages and methods, and the marks of comments, which
// can stand between the words of a rule. nextWord is where a word of a name ends.
var (
	notText  = regexp.MustCompile("(?m)^(?:\\t|import )(?:[a-zA-Z0-9_.]+ )?\"[a-z0-9.]+(?:/[\\w.-]+)*\"$|`[a-z]+:\"[^`]*`|^[ \\t]*//(?:go:.*)?|\\.[A-Za-z]\\w*")
	nextWord = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)
