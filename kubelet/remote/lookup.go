package remote

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// pick returns the newest match; an empty endpoint is any.
func pick(all []watch.Status, kind, name, endpoint string) (newest watch.Status, found bool) {
	for _, p := range all {
		fits := p.Phase == watch.Registered && p.Type == kind && p.Name == name && (endpoint == "" || p.Endpoint == endpoint)
		if fits && (!found || p.Since.After(newest.Since)) {
			newest, found = p, true
		}
	}
	return newest, found
}

func (s *Service) notFoundText(all []watch.Status, kind, name string) string {
	if slices.ContainsFunc(all, func(p watch.Status) bool { return p.Type == kind && p.Name == name }) {
		_, text := s.Host.Why(name)
		return text
	}
	return notFoundText(all, s.Info.Directory, kind, name)
}

// suggestion returns the most similar name, unless the name is known.
func (s *Service) suggestion(kind, name string) string {
	var names []string
	for _, p := range s.Host.List() {
		if p.Name == name {
			return ""
		}
		if p.Name != "" && (kind == "" || p.Type == kind) {
			names = append(names, p.Name)
		}
	}
	return suggestion(name, names)
}

const maxNames = 8

func notFoundText(all []watch.Status, directory, kind, name string) string {
	var names, silent []string
	for _, p := range all {
		switch {
		case p.Name == "":
			silent = append(silent, p.Socket)
		case p.Type == kind:
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	parts := []string{
		fmt.Sprintf("no plugin of type %s below %s is called %q%s", kind, directory, name, suggestion(name, names)),
		"known names of that type: " + nameList(names),
	}
	if len(silent) > 0 {
		parts = append(parts, "no name reported yet by "+several(silent))
	}
	return strings.Join(parts, "; ")
}

func suggestion(word string, words []string) string {
	if near := errs.Nearest(word, words); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

func nameList(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return several(words)
}

func several(words []string) string {
	text := strings.Join(words[:min(len(words), maxNames)], ", ")
	if left := len(words) - maxNames; left > 0 {
		text += fmt.Sprintf(" and %d more", left)
	}
	return text
}
