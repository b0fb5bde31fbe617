package spdk

import (
	"encoding/json"
	"slices"
	"strings"
)

// sensitive are parts of the names of parameters with secrets or key names.
var sensitive = [...]string{"psk", "key", "secret", "password", "passphrase", "token"}

// plain are exceptions: names and paths of key files are needed for debugging.
var plain = [...]string{"key_file", "keyfile"}

func redact(text string, params []byte) string {
	if text == "" || len(params) == 0 {
		return text
	}
	var tree any
	if json.Unmarshal(params, &tree) != nil {
		return text
	}
	found := secrets(tree, false, nil)
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) }) // longer ones can contain others
	for _, s := range found {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

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
