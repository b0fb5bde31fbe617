package nodestate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Hash identifies the meaning of the spec by 64 hexadecimal digits. It is equal
// for specs that differ only in order, in defaults that are written out, and in
// letter case where that does not count.
func (s Spec) Hash() string {
	text, err := json.Marshal(s.canonical())
	if err != nil {
		// Only a spec made by hand can have values that JSON does not.
		text = fmt.Append(nil, s)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (s Spec) canonical() Spec {
	s.Interfaces = slices.Clone(s.Interfaces)
	for n, i := range s.Interfaces {
		i.LinkType = strings.ToLower(i.LinkType)
		i.ESwitchMode = i.Mode()
		i.VFGroups = slices.Clone(i.VFGroups)
		for n := range i.VFGroups {
			i.VFGroups[n].DeviceType = i.VFGroups[n].Type()
		}
		slices.SortStableFunc(i.VFGroups, func(a, b VFGroup) int { return cmp.Compare(a.VFRange, b.VFRange) })
		s.Interfaces[n] = i
	}
	slices.SortStableFunc(s.Interfaces, func(a, b Interface) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) })
	s.Bridges.OVS = slices.Clone(s.Bridges.OVS)
	slices.SortStableFunc(s.Bridges.OVS, func(a, b Bridge) int { return cmp.Compare(a.Name, b.Name) })
	return s
}
