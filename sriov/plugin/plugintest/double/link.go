package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kinds of network devices without hardware; which of them there are depends on
// the kernel.
var kinds = []string{"dummy", "veth", "bridge"}

// makeLink makes a network device of the first kind that the kernel has.
func makeLink(name string) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	for _, kind := range kinds {
		data, err := linkMessage(name, kind)
		if err != nil {
			return err
		}
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl}, Data: data,
		})
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", kind, err))
	}
	return fmt.Errorf("the kernel makes no network device of the kinds %q: %w", kinds, errors.Join(errs...))
}

func linkMessage(name, kind string) ([]byte, error) {
	info, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.IFLA_INFO_KIND, Data: []byte(kind + "\x00")}})
	if err != nil {
		return nil, err
	}
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint16(header[2:], unix.ARPHRD_ETHER)
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.IFLA_IFNAME, Data: []byte(name + "\x00")}, {Type: unix.IFLA_LINKINFO, Data: info},
	})
	return append(header, attributes...), err
}
