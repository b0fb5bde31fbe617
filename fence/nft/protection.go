package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

const (
	ownerPersist = "owner+persist"
	// Two equal tables: an operation removes only one.
	ownerTwice = "flag persist not supported by this kernel (needs Linux 6.9): using one table with an owner, which other programs cannot flush, and one without, which stays when all processes are dead"
	plainOnly  = "flags owner and persist not supported by this kernel: other programs can flush the table; it is repaired after that"
)

const ownedSuffix = "-owned"

// protection finds the kernel's best protection without creating a table.
func protection(ctx context.Context, c *nft.Conn, config Config) ([]layout, string, error) {
	can := func(flags uint32) (bool, error) {
		if flags&config.unsupportedFlags != 0 {
			return false, nil
		}
		var b nft.Batch
		b.SetTable(fmt.Sprintf("cleat-probe-%d", c.Port()), flags)
		err := c.Check(ctx, &b)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			return false, nil
		}
		if err != nil {
			return false, wrapKind("check which table flags the kernel supports", err)
		}
		return true, nil
	}
	for _, offer := range offers() {
		ok, err := can(offer.flags)
		if err != nil {
			return nil, "", err
		}
		if ok {
			return offer.layouts(config), offer.protection, nil
		}
	}
	return nil, "", errs.Errorf(errs.Unsupported, "this kernel cannot create an nftables table of family inet: it needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET")
}

// offer is a protection, with the table flags that it needs.
type offer struct {
	flags      uint32
	protection string
	tables     []layout // names are suffixes
}

// offers has the best first.
func offers() []offer {
	return []offer{
		{nft.Owner | nft.Persist, ownerPersist, []layout{{flags: nft.Owner | nft.Persist}}},
		{nft.Owner, ownerTwice, []layout{{}, {table: ownedSuffix, flags: nft.Owner}}},
		{0, plainOnly, []layout{{}}},
	}
}

func (o offer) layouts(config Config) []layout {
	var all []layout
	for _, l := range o.tables {
		all = append(all, layout{table: config.Table + l.table, flags: l.flags, ports: config.Ports})
	}
	return all
}
