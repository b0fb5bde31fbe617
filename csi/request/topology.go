package request

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

// Topology is a place: the values of topological keys. An empty one is
// everywhere.
type Topology map[string]string

// Covers reports whether who is at the given segments is also at t. Keys are
// compared without regard to case, as the specification has it.
func (t Topology) Covers(segments map[string]string) bool {
	for key, value := range t {
		if !hasSegment(segments, key, value) {
			return false
		}
	}
	return true
}

func hasSegment(segments map[string]string, key, value string) bool {
	for k, v := range segments {
		if strings.EqualFold(k, key) && v == value {
			return true
		}
	}
	return false
}

// Accessibility says where a volume or snapshot must be usable from; nil is
// anywhere.
type Accessibility struct {
	Requisite, Preferred []Topology
}

// Admits reports whether something at the given segments satisfies the
// requirement. Preferences are only wishes: the one place that a node-local
// plugin has is as good as it gets.
func (a *Accessibility) Admits(segments map[string]string) bool {
	if a == nil || len(a.Requisite) == 0 {
		return true
	}
	for _, t := range a.Requisite {
		if t.Covers(segments) {
			return true
		}
	}
	return false
}

var (
	topologyName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	topologyPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

// maxTopologyWord bounds prefix, name and value of a segment each, in bytes.
const maxTopologyWord = 63

// CheckTopology checks segments as the specification wants them: ours at
// start-up, and those in requests.
func CheckTopology(field string, segments map[string]string) error {
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
		folded := strings.ToLower(key)
		if other, twice := seen[folded]; twice {
			return invalidf("%s holds both %s and %s, which are the same key", field, min(key, other), max(key, other))
		}
		seen[folded] = key
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

// parseAccessibility translates a requirement; offered says whether the plugin
// announced that it takes one.
func parseAccessibility(r *csi.TopologyRequirement, offered bool) (*Accessibility, error) {
	const field = "accessibility_requirements"
	if r == nil {
		return nil, nil
	}
	if !offered {
		return nil, invalidf("%s is set, but this plugin does not announce accessibility constraints here", field)
	}
	if len(r.GetRequisite()) == 0 && len(r.GetPreferred()) == 0 {
		return nil, invalidf("%s holds neither requisite nor preferred topologies", field)
	}
	requisite, err := parseTopologies(field+".requisite", r.GetRequisite())
	if err != nil {
		return nil, err
	}
	preferred, err := parseTopologies(field+".preferred", r.GetPreferred())
	if err != nil {
		return nil, err
	}
	a := &Accessibility{Requisite: requisite, Preferred: preferred}
	return a, a.checkPreferred(field)
}

// checkPreferred holds that all that is preferred is also admitted.
func (a *Accessibility) checkPreferred(field string) error {
	if len(a.Requisite) == 0 {
		return nil
	}
	known := make(map[string]bool, len(a.Requisite))
	for _, t := range a.Requisite {
		known[t.key()] = true
	}
	for i, t := range a.Preferred {
		if !known[t.key()] {
			return invalidf("%s.preferred[%d] is not among the requisite topologies", field, i)
		}
	}
	return nil
}

// key is the same for equal topologies; fmt prints maps in the order of keys.
func (t Topology) key() string {
	folded := make(map[string]string, len(t))
	for k, v := range t {
		folded[strings.ToLower(k)] = v
	}
	return fmt.Sprintf("%q", folded)
}

func parseTopologies(field string, list []*csi.Topology) ([]Topology, error) {
	all := make([]Topology, len(list))
	for i, t := range list {
		if err := CheckTopology(fmt.Sprintf("%s[%d]", field, i), t.GetSegments()); err != nil {
			return nil, err
		}
		all[i] = t.GetSegments()
	}
	return all, nil
}
