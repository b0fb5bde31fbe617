package request

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Block reads a block of addresses, such as 192.0.2.0/24 or 2001:db8::/32; an
// address alone is the block of just it. IPv4 addresses that are written as
// IPv6 (::ffff:192.0.2.7) are IPv4. The result is masked and never 4in6. What
// could mean two things is refused, with what would be right in the message.
func Block(text string) (netip.Prefix, error) {
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return netip.Prefix{}, invalidf("the block is empty: write one such as 192.0.2.7/32 or 2001:db8::/64")
	case trimmed != text:
		return netip.Prefix{}, invalidf("%s has space around it: write %s", errs.Quote(text), errs.Quote(trimmed))
	}
	addrText, bitsText, hasBits := strings.Cut(text, "/")
	addr, err := address(addrText)
	if err != nil {
		return netip.Prefix{}, invalidf("%s is no block of addresses: %w", errs.Quote(text), err)
	}
	size := addr.BitLen()
	if hasBits {
		if size, err = prefixLength(bitsText, addr.BitLen()); err != nil {
			return netip.Prefix{}, invalidf("%s is no block of addresses: %w", errs.Quote(text), err)
		}
	}
	if addr.Is4In6() {
		if size < 96 {
			return netip.Prefix{}, invalidf("%s is an IPv4 address written as IPv6, for which a prefix has 96 to 128 bits: write it as IPv4", errs.Quote(text))
		}
		addr, size = addr.Unmap(), size-96
	}
	block := netip.PrefixFrom(addr, size).Masked()
	if block.Addr() != addr {
		return netip.Prefix{}, invalidf("%s has bits set behind its prefix: write %s for the block, or %s for that one address", errs.Quote(text), block, netip.PrefixFrom(addr, addr.BitLen()))
	}
	if err := clientless(block); err != nil {
		return netip.Prefix{}, err
	}
	return block, nil
}

// address reads an address without a zone.
func address(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err == nil && addr.Zone() != "":
		return netip.Addr{}, errZone
	case err == nil:
		return addr, nil
	case withoutZeros(text) != text:
		return netip.Addr{}, errZeros
	default:
		return netip.Addr{}, errAddress
	}
}

var (
	errAddress = errors.New("it does not begin with an IP address; host names, ports and ranges are not taken")
	errZone    = errors.New("a zone (%...) has no place in it: what is fenced is fenced on all interfaces")
	errZeros   = errors.New("a number begins with 0, which some programs read as octal: write it without")
)

// withoutZeros removes leading zeros from the numbers of an IPv4 address; any
// other text comes back as it was.
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

// prefixLength reads what is behind the slash.
func prefixLength(text string, most int) (int, error) {
	if mask, err := netip.ParseAddr(text); err == nil && mask.BitLen() == most {
		return 0, errMask(mask)
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || int(n) > most || strconv.FormatUint(n, 10) != text {
		return 0, invalidf("%s is no length of a prefix: it is a plain number from 0 to %d", errs.Quote(text), most)
	}
	return int(n), nil
}

// errMask answers a mask where the length of a prefix belongs.
func errMask(mask netip.Addr) error {
	for bits := range mask.BitLen() + 1 {
		if maskOf(bits, mask.BitLen()) == mask {
			return invalidf("write /%d for the mask %s", bits, mask)
		}
	}
	return invalidf("%s is not the length of a prefix, and no mask either", mask)
}

// maskOf returns the address of which just the first bits are set.
func maskOf(bits, size int) netip.Addr {
	ones := make([]byte, size/8)
	for i := range ones {
		ones[i] = 0xff
	}
	all, _ := netip.AddrFromSlice(ones)
	return netip.PrefixFrom(all, bits).Masked().Addr()
}

// clientless refuses blocks in which no client can be, so that nobody takes a
// slip of the pen for a fence.
func clientless(block netip.Prefix) error {
	switch {
	case block.IsSingleIP() && block.Addr().IsUnspecified():
		return invalidf("%s is no client's address: write the client's own, or %s/0 for everybody", block, block.Addr())
	case multicast(block):
		return invalidf("%s is multicast, from where no client sends", block)
	default:
		return nil
	}
}

// multicast reports whether a block is all multicast.
func multicast(block netip.Prefix) bool {
	least := 4 // 224.0.0.0/4
	if block.Addr().Is6() {
		least = 8 // ff00::/8
	}
	return block.Bits() >= least && block.Addr().IsMulticast()
}
