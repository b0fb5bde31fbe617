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
	// Two tables with the same rules: what removes the one leaves the other.
	ownerTwice = "persist unavailable on this kernel (Linux 6.9 has it): a table with an owner that others cannot flush, and a plain one that stays when all processes are dead"
	plainOnly  = "owner and persist unavailable on this kernel: others can flush the table, which is repaired when they do"
)

// ownedSuffix names the second table.
const ownedSuffix = "-owned"

// protection asks the kernel which tables it can make, without making one.
func protection(ctx context.Context, c *nft.Conn, config Config) ([]layout, string, error) {
	can := func(flags uint32) (bool, error) {
		if flags&config.without != 0 {
			return false, nil
		}
		var b nft.Batch
		b.SetTable(fmt.Sprintf("cleat-asks-%d", c.Port()), flags)
		err := c.Check(ctx, &b)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			return false, nil
		}
		if err != nil {
			return false, refused("ask the kernel for a table", err)
		}
		return true, nil
	}
	for _, offer := range offers() {
		ok, err := can(offer.asks)
		if err != nil {
			return nil, "", err
		}
		if ok {
			return offer.layouts(config), offer.protection, nil
		}
	}
	return nil, "", errs.Errorf(errs.Unsupported, "this kernel makes no nftables table of the family inet: CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET must be set")
}

// offer is a way to protect the table, on kernels that can make a table with
// the flags asked for.
type offer struct {
	asks       uint32
	protection string
	tables     []layout // with suffixes for names
}

// offers begins with the best.
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
