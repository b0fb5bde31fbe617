package vflink

import (
	"context"

	"github.com/mdlayher/netlink"

	"github.com/cleatproject/cleat/internal/linux/genetlink"
)

// ErrNoFamily: the kernel lacks a family of generic netlink, which its module
// or its configuration brings.
var ErrNoFamily = genetlink.ErrNoFamily

// generic asks a family of generic netlink by its name.
func generic(ctx context.Context, family string, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	id, err := genetlink.Family(ctx, family)
	if err != nil {
		return nil, err
	}
	return genetlink.Ask(ctx, id, command, flags, encode)
}
