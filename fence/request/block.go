package request

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Block parses 192.0.2.0/24, 2001:db8::/32, or a single address. IPv4 addresses
// written as IPv6 (::ffff:192.0.2.7) become IPv4. The result is masked and
// never 4in6. Ambiguous texts are rejected with what to write.
func Block(text string) (netip.Prefix, error) {
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return netip.Prefix{}, invalidf("the block is empty: write a CIDR such as 192.0.2.7/32 or 2001:db8::/64")
	case trimmed != text:
		return netip.Prefix{}, invalidf("%s has leading or trailing spaces: write %s", errs.Quote(text), errs.Quote(trimmed))
	}
	addrText, bitsText, hasBits := strings.Cut(text, "/")
	addr, err := address(addrText)
	if err != nil {
		return netip.Prefix{}, invalidf("%s is not a CIDR: %w", errs.Quote(text), err)
	}
	size := addr.BitLen()
	if hasBits {
		if size, err = prefixLength(bitsText, addr.BitLen()); err != nil {
			return netip.Prefix{}, invalidf("%s is not a CIDR: %w", errs.Quote(text), err)
		}
	}
	if addr.Is4In6() {
		if size < 96 {
			return netip.Prefix{}, invalidf("%s is an IPv4 address written as IPv6, which needs a prefix length from 96 to 128: write it as IPv4", errs.Quote(text))
		}
		addr, size = addr.Unmap(), size-96
	}
	block := netip.PrefixFrom(addr, size).Masked()
	if block.Addr() != addr {
		return netip.Prefix{}, invalidf("%s has host bits set: write %s for the block, or %s for the single address", errs.Quote(text), block, netip.PrefixFrom(addr, addr.BitLen()))
	}
	if err := rejectClientless(block); err != nil {
		return netip.Prefix{}, err
	}
	return block, nil
}

func address(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err == nil && addr.Zone() != "":
		return netip.Addr{}, errZone
	case err == nil:
		return addr, nil
	case withoutZeros(text) != text:
		return netip.Addr{}, errZeros
	}
	if with, err := netip.ParseAddrPort(text); err == nil {
		single := with.Addr().WithZone("").Unmap()
		return netip.Addr{}, fmt.Errorf("it has a port, and a fence applies to whole addresses: write %s", netip.PrefixFrom(single, single.BitLen()))
	}
	return netip.Addr{}, errAddress
}

var (
	errAddress = errors.New("it does not begin with an IP address; host names, ports and ranges are not supported")
	errZone    = errors.New("it has a zone (%...): fences apply to all interfaces, leave the zone out")
	errZeros   = errors.New("a number has a leading zero, which some programs parse as octal: remove the zero")
)

// withoutZeros removes leading zeros from an IPv4 address's numbers.
func withoutZeros(text string) string {
	fields := strings.Split(text, ".")
	if len(fields) != 4 {
		return text
	}
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 8)
		if err != nil {
			return text
		}
		fields[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(fields, ".")
}

func prefixLength(text string, most int) (int, error) {
	if mask, err := netip.ParseAddr(text); err == nil && mask.BitLen() == most {
		return 0, errMask(mask)
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || int(n) > most || strconv.FormatUint(n, 10) != text {
		return 0, invalidf("prefix length %s is not a number from 0 to %d", errs.Quote(text), most)
	}
	return int(n), nil
}

// errMask: a netmask instead of a prefix length.
func errMask(mask netip.Addr) error {
	for bits := range mask.BitLen() + 1 {
		if maskOf(bits, mask.BitLen()) == mask {
			return invalidf("write /%d instead of the mask %s", bits, mask)
		}
	}
	return invalidf("%s is neither a prefix length nor a netmask", mask)
}

func maskOf(bits, size int) netip.Addr {
	ones := make([]byte, size/8)
	for i := range ones {
		ones[i] = 0xff
	}
	all, _ := netip.AddrFromSlice(ones)
	return netip.PrefixFrom(all, bits).Masked().Addr()
}

// Blocks without possible clients are most likely typing errors.
func rejectClientless(block netip.Prefix) error {
	switch {
	case block.IsSingleIP() && block.Addr().IsUnspecified():
		return invalidf("%s is not a client's address: write the client's address, or %s/0 for all clients", block, block.Addr())
	case multicast(block):
		return invalidf("%s is multicast, which is never a source address", block)
	default:
		return nil
	}
}

func multicast(block netip.Prefix) bool {
	least := 4 // 224.0.0.0/4
	if block.Addr().Is6() {
		least = 8 // ff00::/8
	}
	return block.Bits() >= least && block.Addr().IsMulticast()
}
