package csi

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

var (
	topologyName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	topologyPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

// maxTopologyWord limits prefix, name and value of a segment each, in bytes.
const maxTopologyWord = 63

func checkTopology(field string, segments map[string]string) error {
	if err := checkMap(field, segments); err != nil {
		return err
	}
	seen := make(map[string]string, len(segments))
	for key, value := range segments {
		if err := checkTopologyKey(field, key); err != nil {
			return err
		}
		if len(value) > maxTopologyWord || !topologyName.MatchString(value) {
			return invalidf("%s[%s] has the value %s; it must have at most %d letters, digits, - _ and ., and begin and end with a letter or digit", field, key, errs.Quote(value), maxTopologyWord)
		}
		lower := strings.ToLower(key)
		if other, twice := seen[lower]; twice {
			return invalidf("%s holds both %s and %s, which are the same key", field, min(key, other), max(key, other))
		}
		seen[lower] = key
	}
	return nil
}

func checkTopologyKey(field, key string) error {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	if found && (len(prefix) > maxTopologyWord || !topologyPrefix.MatchString(prefix)) {
		return invalidf("%s holds the key %s; its prefix must be a domain name in lower case of at most %d bytes", field, errs.Quote(key), maxTopologyWord)
	}
	if len(name) > maxTopologyWord || !topologyName.MatchString(name) {
		return invalidf("%s holds the key %s; its name must have at most %d letters, digits, - _ and ., and begin and end with a letter or digit", field, errs.Quote(key), maxTopologyWord)
	}
	return nil
}

// lowerKeys makes topologies comparable: the specification ignores the case of
// their keys.
func lowerKeys(segments map[string]string) map[string]string {
	lower := make(map[string]string, len(segments))
	for key, value := range segments {
		lower[strings.ToLower(key)] = value
	}
	return lower
}

// covers reports whether a place with the given segments belongs to a topology;
// the empty topology is everywhere.
func covers(topology, segments map[string]string) bool {
	segments = lowerKeys(segments)
	for key, value := range topology {
		if segments[strings.ToLower(key)] != value {
			return false
		}
	}
	return true
}

// checkAccessibility checks where an object is to be usable from. Exhausted:
// not from where this plugin creates it. Preferences are checked and otherwise
// ignored: this plugin has one place to offer.
func (a announcement) checkAccessibility(objects string, r *spec.TopologyRequirement) error {
	const field = "accessibility_requirements"
	switch {
	case r == nil:
		return nil
	case len(a.segments) == 0:
		return invalidf("%s is set, but this plugin does not announce accessibility constraints here", field)
	case len(r.GetRequisite()) == 0 && len(r.GetPreferred()) == 0:
		return invalidf("%s holds neither requisite nor preferred topologies", field)
	}
	requisite, admitted := map[string]bool{}, len(r.GetRequisite()) == 0
	for i, t := range r.GetRequisite() {
		if err := checkTopology(fmt.Sprintf("%s.requisite[%d]", field, i), t.GetSegments()); err != nil {
			return err
		}
		requisite[describe(lowerKeys(t.GetSegments()))] = true
		admitted = admitted || covers(t.GetSegments(), a.segments)
	}
	for i, t := range r.GetPreferred() {
		if err := checkTopology(fmt.Sprintf("%s.preferred[%d]", field, i), t.GetSegments()); err != nil {
			return err
		}
		if len(requisite) > 0 && !requisite[describe(lowerKeys(t.GetSegments()))] {
			return invalidf("%s.preferred[%d] is not among the requisite topologies", field, i)
		}
	}
	if !admitted {
		return errs.Errorf(errs.Exhausted, "%s of this driver are on %s, which no requisite topology of %s includes", objects, describe(a.segments), field)
	}
	return nil
}

func describe(segments map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		all = append(all, key+"="+segments[key])
	}
	return strings.Join(all, ", ")
}
