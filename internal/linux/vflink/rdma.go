package vflink

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/genetlink"
)

// How network namespaces have RDMA devices.
const (
	Shared    = "shared"
	Exclusive = "exclusive"
)

// Of rdma/rdma_netlink.h.
const (
	rdmaDevices = 5                   // RDMA_NL_NLDEV
	rdmaGet     = rdmaDevices<<10 | 6 // RDMA_NLDEV_CMD_SYS_GET
	rdmaMode    = 66                  // RDMA_NLDEV_SYS_ATTR_NETNS_MODE
)

// RDMAMode is how network namespaces have RDMA devices; "" where the kernel does
// not tell, as without any such device it does not.
func (Kernel) RDMAMode(ctx context.Context) (string, error) {
	messages, err := genetlink.Execute(ctx, unix.NETLINK_RDMA, netlink.Message{
		Header: netlink.Header{Type: rdmaGet, Flags: netlink.Request},
	})
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ECONNREFUSED):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the mode of the RDMA subsystem: %w", err)
	}
	for _, m := range messages {
		ad, err := netlink.NewAttributeDecoder(m.Data)
		if err != nil {
			return "", fmt.Errorf("read the mode of the RDMA subsystem: %w", err)
		}
		for ad.Next() {
			if ad.Type() == rdmaMode {
				return rdmaModeName(ad.Uint8()), nil
			}
		}
	}
	return "", nil
}

func rdmaModeName(mode uint8) string {
	switch mode {
	case 0:
		return Exclusive
	case 1:
		return Shared
	}
	return ""
}
