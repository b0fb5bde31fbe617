package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// registered returns the registered instances of a name: first that with the
// preferred endpoint, then the newest.
func registered(all []watch.Status, kind, name, preferred string) []watch.Status {
	found := slices.DeleteFunc(slices.Clone(all), func(p watch.Status) bool {
		return p.Phase != watch.Registered || p.Type != kind || p.Name != name
	})
	slices.SortFunc(found, func(a, b watch.Status) int {
		switch isA, isB := a.Endpoint == preferred, b.Endpoint == preferred; {
		case isA && !isB:
			return -1
		case isB && !isA:
			return 1
		}
		return b.Since.Compare(a.Since)
	})
	return found
}

// serving returns the first instance whose endpoint a process serves: a plugin that
// has just ended is still registered.
func (s *Service) serving(ctx context.Context, kind, name string) (watch.Status, error) {
	all := s.Host.List()
	endpoint, _ := s.Serving(kind, name)
	var dead []string
	for _, p := range registered(all, kind, name, endpoint) {
		err := watch.CheckEndpoint(ctx, p.Plugin)
		if err == nil {
			return p, nil
		}
		dead = append(dead, fmt.Sprintf("%s %s at %s is registered, and no process serves its endpoint: %v; start the plugin again", kind, name, p.Socket, err))
	}
	if len(dead) > 0 {
		return watch.Status{}, &apiError{kind: errUnknown, text: several(dead)}
	}
	return watch.Status{}, &apiError{kind: errUnknown, text: s.notFoundText(all, kind, name)}
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
