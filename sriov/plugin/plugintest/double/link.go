package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// kinds need no hardware; the kernel decides which exist.
var kinds = []string{"dummy", "veth", "bridge"}

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
