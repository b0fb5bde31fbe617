package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Parameters with a meaning here. Any other is the caller's own, and only
// tells who asked.
const (
	// reservedPrefix begins the keys that are no caller's own.
	reservedPrefix = "fence.cleat.dev/"
	// EndingHeader is the header of ListClusterFence's answer with the sessions
	// that fences wait for, a text each.
	EndingHeader = "cleat-ending-bin"
	// ForceParameter, "true", insists on a block that covers this server's own
	// addresses or everything. It is no part of who asked.
	ForceParameter = reservedPrefix + "force"
	// OwnerParameter and ViaParameter are what a server that passes a fence on
	// to its peers sends in place of its caller's parameters: the digest of
	// those, and who passes it on.
	OwnerParameter = reservedPrefix + "owner"
	ViaParameter   = reservedPrefix + "via"
)

// maxMap bounds keys and values of one map together, in bytes, as CSI does for
// maps that have no bound of their own.
const maxMap = 4096

// parameters checks the parameters of a request and returns whether it
// insists.
func parameters(m map[string]string) (force bool, err error) {
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
	}
	if size > maxMap {
		return false, invalidf("parameters holds %d bytes in keys and values, at most %d are allowed", size, maxMap)
	}
	var wrong findings
	for _, key := range slices.Sorted(maps.Keys(m)) {
		checkReserved(&wrong, key, m[key])
	}
	return m[ForceParameter] == "true", wrong.err()
}

// checkReserved checks the parameter of one key. Values of keys that are not
// ours may be secret and stay out of messages.
func checkReserved(wrong *findings, key, value string) {
	switch {
	case key == ForceParameter:
		if value != "true" && value != "false" {
			wrong.add("parameters[%s] is %s: it takes true or false", key, errs.Quote(value))
		}
	case key == OwnerParameter:
		if digest, err := hex.DecodeString(value); err != nil || len(digest) != sha256.Size || value != strings.ToLower(value) {
			wrong.add("parameters[%s] is %s: it takes a SHA-256 in lower-case hex, %d digits", key, errs.Quote(value), 2*sha256.Size)
		}
	case key == ViaParameter:
		if value == "" {
			wrong.add("parameters[%s] is empty: it takes the name of the server that passes the request on", key)
		}
	case strings.HasPrefix(strings.ToLower(key), reservedPrefix):
		known := []string{ForceParameter, OwnerParameter, ViaParameter}
		if n := errs.Nearest(strings.ToLower(key), known); n != "" {
			wrong.add("there is no parameter %s; did you mean %s?", errs.Quote(key), n)
		} else {
			wrong.add("there is no parameter %s: those that begin with %s are %s", errs.Quote(key), reservedPrefix, strings.Join(known, ", "))
		}
	}
}

// Owner names the set of parameters that a request came with, apart from
// ForceParameter. Sets that differ in any key or value have different digests;
// values are not kept.
func Owner(parameters map[string]string) volume.FenceOwner {
	keys := slices.Sorted(maps.Keys(parameters))
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == ForceParameter })
	hash := sha256.New()
	fmt.Fprintln(hash, "cleat fence owner 1")
	for _, key := range keys {
		// The lengths make it the encoding of just one set.
		fmt.Fprintf(hash, "%d:%s%d:%s", len(key), key, len(parameters[key]), parameters[key])
	}
	return volume.FenceOwner{Digest: hex.EncodeToString(hash.Sum(nil)), Keys: keys}
}
