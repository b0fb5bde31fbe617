// Package markdown reads the tables of pages.
package markdown

import (
	"regexp"
	"strings"
)

var fence = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// Row is a table row: its cells by column heading.
type Row map[string]string

// Rows returns the rows of all tables of a page. A bar in a cell is written \|.
func Rows(page string) []Row {
	var all []Row
	var head []string
	for line := range strings.Lines(fence.ReplaceAllString(page, "")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			head = nil
			continue
		}
		cells := cellsOf(line)
		switch {
		case head == nil:
			head = cells
		case strings.Trim(line, "|-: ") == "":
		default:
			row := Row{}
			for i, cell := range cells {
				if i < len(head) {
					row[head[i]] = cell
				}
			}
			all = append(all, row)
		}
	}
	return all
}

func cellsOf(line string) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(strings.Trim(line, "|"), `\|`, bar)
	var cells []string
	for cell := range strings.SplitSeq(line, "|") {
		cells = append(cells, strings.TrimSpace(strings.ReplaceAll(cell, bar, "|")))
	}
	return cells
}

var span = regexp.MustCompile("`([^`]+)`")

// Spans returns the inline code of a text.
func Spans(text string) []string {
	var all []string
	for _, found := range span.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		all = append(all, found[1])
	}
	return all
}

// Parts returns the constant parts of a message: those around its ellipses.
func Parts(message string) []string {
	var all []string
	for part := range strings.SplitSeq(message, "…") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}
