package remote

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// pick returns the plugin that was registered last, of those with this type,
// name and, when it is not empty, endpoint.
func pick(all []watch.Status, kind, name, endpoint string) (newest watch.Status, found bool) {
	for _, p := range all {
		fits := p.Phase == watch.Registered && p.Type == kind && p.Name == name && (endpoint == "" || p.Endpoint == endpoint)
		if fits && (!found || p.Since.After(newest.Since)) {
			newest, found = p, true
		}
	}
	return newest, found
}

// missing says why no plugin of that type and name is registered.
func (s *Service) missing(all []watch.Status, kind, name string) string {
	if slices.ContainsFunc(all, func(p watch.Status) bool { return p.Type == kind && p.Name == name }) {
		_, text := s.Host.Why(name)
		return text
	}
	return missing(all, s.Info.Directory, kind, name)
}

// meant asks after the name that was probably meant, where nobody has this one.
func (s *Service) meant(kind, name string) string {
	var names []string
	for _, p := range s.Host.List() {
		if p.Name == name {
			return ""
		}
		if p.Name != "" && (kind == "" || p.Type == kind) {
			names = append(names, p.Name)
		}
	}
	return meant(name, names)
}

// most is how many plugins one sentence names.
const most = 8

// missing says what there is where a name is not.
func missing(all []watch.Status, directory, kind, name string) string {
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
		fmt.Sprintf("no plugin of type %s below %s is called %q%s", kind, directory, name, meant(name, names)),
		"there " + are(names) + " of that type",
	}
	if len(silent) > 0 {
		parts = append(parts, "nobody has said yet who is behind "+several(silent))
	}
	return strings.Join(parts, "; ")
}

// meant asks after the word that was probably meant.
func meant(word string, words []string) string {
	if near := errs.Nearest(word, words); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

// are says what there is, behind "there".
func are(words []string) string {
	switch len(words) {
	case 0:
		return "is none"
	case 1:
		return "is " + words[0]
	}
	return "are " + several(words)
}

func several(words []string) string {
	text := strings.Join(words[:min(len(words), most)], ", ")
	if left := len(words) - most; left > 0 {
		text += fmt.Sprintf(" and %d more", left)
	}
	return text
}
