package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// kinds are kinds of network devices without hardware; which of them exist depends
// on the kernel.
var kinds = []string{"dummy", "veth", "bridge"}

// makeLink creates a network device of the first kind that the kernel has.
func makeLink(name string) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	var errs []error
	for _, kind := range kinds {
		err := new(netlink.Handle).LinkAdd(&netlink.GenericLink{LinkAttrs: attributes, LinkType: kind})
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", kind, err))
	}
	return fmt.Errorf("the kernel creates no network device of the kinds %q: %w", kinds, errors.Join(errs...))
}
