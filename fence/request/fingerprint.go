package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/cleatproject/cleat/fence/plan"
)

// Fingerprint is equal for calls that ask for the same, so that a repeated
// call joins the one under way. Secrets have no part in it.
func Fingerprint(call string, ask plan.Ask) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %s %t", call, ask.Owner.Digest, ask.Force)
	for _, block := range ask.Blocks {
		fmt.Fprintf(hash, " %s", block)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Keys names the objects that an ask works on: its blocks, as its owner's. What
// two owners do to one block does not meet: each has a record of its own.
func Keys(ask plan.Ask) []string {
	keys := make([]string, len(ask.Blocks))
	for i, block := range ask.Blocks {
		keys[i] = "fence:" + ask.Owner.Digest + ":" + block.String()
	}
	return keys
}
