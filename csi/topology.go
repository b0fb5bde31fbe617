package csi

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
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

// volumePlaces checks where a new volume is to be usable from. It returns the
// places, the preferred ones first, if the engine chooses one of them.
func (a announcement) volumePlaces(r *spec.TopologyRequirement) ([]map[string]string, error) {
	if !a.placed {
		return nil, a.checkAccessibility("volumes", r)
	}
	requisite, preferred, err := parseRequirement(r)
	return append(preferred, requisite...), err
}

// checkAccessibility checks where an object is to be usable from. Exhausted:
// not from where this plugin creates it. Preferences are checked and otherwise
// ignored: this plugin has one place to offer.
func (a announcement) checkAccessibility(objects string, r *spec.TopologyRequirement) error {
	if r != nil && len(a.segments) == 0 {
		return invalidf("%s is set, but this plugin does not announce accessibility constraints here", requirementField)
	}
	requisite, _, err := parseRequirement(r)
	if err != nil || len(requisite) == 0 {
		return err
	}
	if !slices.ContainsFunc(requisite, func(t map[string]string) bool { return volume.Covers(t, a.segments) }) {
		return errs.Errorf(errs.Exhausted, "%s of this driver are on %s, which no requisite topology of %s includes", objects, describe(a.segments), requirementField)
	}
	return nil
}

const requirementField = "accessibility_requirements"

// parseRequirement validates a requirement, which can be nil.
func parseRequirement(r *spec.TopologyRequirement) (requisite, preferred []map[string]string, err error) {
	if r != nil && len(r.GetRequisite()) == 0 && len(r.GetPreferred()) == 0 {
		return nil, nil, invalidf("%s holds neither requisite nor preferred topologies", requirementField)
	}
	known := map[string]bool{}
	for i, t := range r.GetRequisite() {
		if err := checkTopology(fmt.Sprintf("%s.requisite[%d]", requirementField, i), t.GetSegments()); err != nil {
			return nil, nil, err
		}
		known[describe(volume.LowerKeys(t.GetSegments()))] = true
		requisite = append(requisite, t.GetSegments())
	}
	for i, t := range r.GetPreferred() {
		if err := checkTopology(fmt.Sprintf("%s.preferred[%d]", requirementField, i), t.GetSegments()); err != nil {
			return nil, nil, err
		}
		if len(known) > 0 && !known[describe(volume.LowerKeys(t.GetSegments()))] {
			return nil, nil, invalidf("%s.preferred[%d] is not among the requisite topologies", requirementField, i)
		}
		preferred = append(preferred, t.GetSegments())
	}
	return requisite, preferred, nil
}

func describe(segments map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		all = append(all, key+"="+segments[key])
	}
	return strings.Join(all, ", ")
}
