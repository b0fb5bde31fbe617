package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// configLevel is an object of the document that has keys of its own: the document,
// a resource, or a selector of a device type.
type configLevel string

const (
	documentLevel configLevel = "the document"
	resourceLevel configLevel = "a resource"
)

func selectorLevel(t DeviceType) configLevel { return configLevel("a selector of " + string(t)) }

// keysOf are the keys of a level, in upstream's order.
func keysOf(l configLevel) []string {
	switch l {
	case documentLevel:
		return []string{"resourceList"}
	case resourceLevel:
		return []string{"resourceName", "resourcePrefix", "deviceType", "excludeTopology", "selectors", "additionalInfo"}
	case selectorLevel(NetDevice):
		return []string{"vendors", "devices", "drivers", "pciAddresses", "acpiIndexes", "pfNames", "rootDevices", "linkTypes",
			"ddpProfiles", "pKeys", "isRdma", "needVhostNet", "vdpaType"}
	case selectorLevel(Accelerator):
		return []string{"vendors", "devices", "drivers", "pciAddresses"}
	case selectorLevel(AuxNetDevice):
		return []string{"vendors", "devices", "drivers", "auxTypes", "pfNames", "rootDevices", "linkTypes", "isRdma", "needVhostNet"}
	}
	return nil
}

// members calls take for each key that is one of known, in any letter case
// and as it is written in known, once: of equals the last. It warns of all
// other keys.
func (r *configReader) members(n *jsonValue, path string, known []string, take func(key string, value *jsonValue, path string)) {
	last := map[string]jsonMember{}
	for _, m := range n.members {
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, m.key.text) })
		if i < 0 {
			r.strange(m, path, known)
			continue
		}
		if earlier, twice := last[known[i]]; twice {
			r.duplicate(m.key, earlier.key, joinPath(path, m.key.text))
		}
		last[known[i]] = m
	}
	for _, k := range known {
		if m, given := last[k]; given {
			take(k, m.value, joinPath(path, m.key.text))
		}
	}
}

func (r *configReader) duplicate(key, earlier *jsonValue, path string) {
	line, _ := r.at(earlier.offset)
	at, column := r.at(key.offset)
	r.add(ConfigWarning{Kind: DuplicateKey, Path: path, Line: at, Column: column, Key: key.text,
		Text: fmt.Sprintf("the key %q stands there twice, also in line %d: only the last counts", key.text, line)})
}

// strange says what is wrong with a key that is not known where it stands.
func (r *configReader) strange(m jsonMember, path string, known []string) {
	key := m.key.text
	// The operator and upstream's own pages write this internal field out.
	internal := strings.EqualFold(key, "SelectorObj") || strings.EqualFold(key, "SelectorObjs")
	if internal && m.value.kind == nullKind && slices.Contains(known, "selectors") {
		return
	}
	line, column := r.at(m.key.offset)
	w := ConfigWarning{Kind: UnknownKey, Path: joinPath(path, key), Line: line, Column: column, Key: key}
	var lowered []string
	for _, k := range known {
		lowered = append(lowered, strings.ToLower(k))
	}
	if near := errs.Nearest(strings.ToLower(key), lowered); near != "" {
		w.Nearest = known[slices.Index(lowered, near)]
	}
	switch home := homes(key); {
	case len(home) > 0:
		w.Kind, w.Nearest = IgnoredKey, ""
		w.Text = fmt.Sprintf("the key %q is ignored here: it is one of %s", key, strings.Join(home, " and of "))
	case w.Nearest != "":
		w.Text = fmt.Sprintf("there is no key %q; did you mean %q? As it stands it is ignored", key, w.Nearest)
	default:
		w.Text = fmt.Sprintf("there is no key %q; it is ignored. There are %s", key, strings.Join(known, ", "))
	}
	r.add(w)
}

// homes are the levels where a key has a meaning.
func homes(key string) []string {
	levels := []configLevel{documentLevel, resourceLevel}
	for _, t := range DeviceTypes() {
		levels = append(levels, selectorLevel(t))
	}
	var all []string
	for _, l := range levels {
		if slices.ContainsFunc(keysOf(l), func(k string) bool { return strings.EqualFold(k, key) }) {
			all = append(all, string(l))
		}
	}
	return all
}

// joinPath adds a key to a path; a key that is no plain word is quoted.
func joinPath(path, key string) string {
	switch {
	case !regexp.MustCompile(`^[A-Za-z0-9_]+$`).MatchString(key):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}
