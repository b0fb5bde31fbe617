package spdk

import (
	"encoding/json"
	"slices"
	"strings"
)

// sensitive are parts of names of parameters whose values are secrets or key
// names.
var sensitive = [...]string{"psk", "key", "secret", "password", "passphrase", "token"}

// plain are parameter names that contain such a part but have no secret value:
// names and paths of key files are needed for debugging.
var plain = [...]string{"key_file", "keyfile"}

// redact replaces secret parameters of a request in a message from the process.
func redact(text string, params []byte) string {
	if text == "" || len(params) == 0 {
		return text
	}
	var tree any
	if json.Unmarshal(params, &tree) != nil {
		return text
	}
	found := secrets(tree, false, nil)
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) }) // longer secrets first, since they can contain others
	for _, s := range found {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// secrets collects the strings below sensitive parameters.
func secrets(tree any, below bool, found []string) []string {
	switch v := tree.(type) {
	case string:
		if below && v != "" {
			found = append(found, v)
		}
	case []any:
		for _, e := range v {
			found = secrets(e, below, found)
		}
	case map[string]any:
		for name, e := range v {
			found = secrets(e, below || isSensitive(name), found)
		}
	}
	return found
}

func isSensitive(name string) bool {
	name = strings.ToLower(name)
	if slices.Contains(plain[:], name) {
		return false
	}
	return slices.ContainsFunc(sensitive[:], func(part string) bool { return strings.Contains(name, part) })
}
