package volume

import "strings"

// Covers reports whether a node with the given topology segments belongs to a
// topology; all nodes belong to the empty one. The CSI specification ignores the
// case of keys.
func Covers(topology, segments map[string]string) bool {
	segments = LowerKeys(segments)
	for key, value := range topology {
		if segments[strings.ToLower(key)] != value {
			return false
		}
	}
	return true
}

// LowerKeys makes topologies comparable.
func LowerKeys(segments map[string]string) map[string]string {
	lower := make(map[string]string, len(segments))
	for key, value := range segments {
		lower[strings.ToLower(key)] = value
	}
	return lower
}
