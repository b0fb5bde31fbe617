package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Batch is a list of changes that is applied atomically: packets see either the
// old or the new rules.
type Batch struct {
	messages []netlink.Message
	what     []string // describes each message
	err      error
}

func (b *Batch) add(kind uint16, flags netlink.HeaderFlags, what string, fill func(*netlink.AttributeEncoder)) {
	data, err := encode(fill)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("nf_tables: %s: %w", what, err)
	}
	b.messages = append(b.messages, message(kind, flags, data))
	b.what = append(b.what, what)
}

// AddTable creates a table without flags, unless it exists.
func (b *Batch) AddTable(name string) {
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, "add table inet "+name, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
	})
}

// SetTable creates a table or sets its flags; a table that another socket owns,
// or that was created without Persist, cannot be owned.
func (b *Batch) SetTable(name string, flags uint32) {
	what := fmt.Sprintf("add table inet %s with flags %#x", name, flags)
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, what, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
		ae.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	})
}

// DeleteTable deletes a table and its contents.
func (b *Batch) DeleteTable(name string) {
	b.add(unix.NFT_MSG_DELTABLE, 0, "delete table inet "+name, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
	})
}

// AddChain creates a base chain.
func (b *Batch) AddChain(c Chain) {
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, fmt.Sprintf("add chain %s of table inet %s", c.Name, c.Table), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, c.Table)
		ae.String(unix.NFTA_CHAIN_NAME, c.Name)
		nested(ae, unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) {
			ae.Uint32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
			ae.Int32(unix.NFTA_HOOK_PRIORITY, c.Priority)
		})
		ae.Uint32(unix.NFTA_CHAIN_POLICY, c.Policy)
		ae.String(unix.NFTA_CHAIN_TYPE, c.Type)
	})
}

// AddSet creates an empty set.
func (b *Batch) AddSet(s Set) {
	id := uint32(len(b.messages) + 1) // unique within the batch
	b.add(unix.NFT_MSG_NEWSET, netlink.Create, fmt.Sprintf("add set %s of table inet %s", s.Name, s.Table), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_TABLE, s.Table)
		ae.String(unix.NFTA_SET_NAME, s.Name)
		ae.Uint32(unix.NFTA_SET_FLAGS, s.Flags)
		ae.Uint32(unix.NFTA_SET_KEY_TYPE, s.KeyType)
		ae.Uint32(unix.NFTA_SET_KEY_LEN, s.KeyLen)
		ae.Uint32(unix.NFTA_SET_ID, id)
	})
}

// FlushSet removes all elements, if any.
func (b *Batch) FlushSet(table, set string) {
	b.add(unix.NFT_MSG_DELSETELEM, 0, fmt.Sprintf("empty set %s of table inet %s", set, table), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	})
}

// elementsPerMessage keeps a list below the 64 KiB of an attribute, and both
// ends of an interval in one message.
const elementsPerMessage = 1024

// AddElements adds elements; those of intervals in pairs and in order.
func (b *Batch) AddElements(table, set string, elements []Element) {
	what := fmt.Sprintf("add elements to set %s of table inet %s", set, table)
	for len(elements) > 0 {
		some := elements[:min(elementsPerMessage, len(elements))]
		elements = elements[len(some):]
		b.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, what, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
			nested(ae, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) {
				for _, e := range some {
					nested(ae, unix.NFTA_LIST_ELEM, e.encode)
				}
			})
		})
	}
}

func (e Element) encode(ae *netlink.AttributeEncoder) {
	nested(ae, unix.NFTA_SET_ELEM_KEY, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.NFTA_DATA_VALUE, e.Key)
	})
	if e.End {
		ae.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
}

// AddRule appends a rule to its chain.
func (b *Batch) AddRule(r Rule) {
	what := fmt.Sprintf("add a rule to chain %s of table inet %s", r.Chain, r.Table)
	b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, what, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, r.Table)
		ae.String(unix.NFTA_RULE_CHAIN, r.Chain)
		nested(ae, unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) {
			for _, e := range r.Expressions {
				nested(ae, unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) {
					ae.String(unix.NFTA_EXPR_NAME, e.name())
					nested(ae, unix.NFTA_EXPR_DATA, e.encode)
				})
			}
		})
	})
}

// Commit applies all changes or none; kernel errors are an *Error. A context
// that ends after the batch was sent does not cancel it.
func (c *Conn) Commit(ctx context.Context, b *Batch) error { return c.run(ctx, b, true) }

// Check asks the kernel whether Commit would succeed.
func (c *Conn) Check(ctx context.Context, b *Batch) error { return c.run(ctx, b, false) }

func (c *Conn) run(ctx context.Context, b *Batch, commit bool) error {
	if b.err != nil {
		return b.err
	}
	if len(b.messages) == 0 {
		return nil
	}
	end, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	all := append([]netlink.Message{batchEdge(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages...)
	last := len(all) - 1
	// Only the last message is acknowledged; all can return errors.
	all[last].Header.Flags |= netlink.Acknowledge
	if commit { // without BATCH_END the batch is only validated
		all = append(all, batchEdge(unix.NFNL_MSG_BATCH_END))
	}
	if err := c.send(ctx, all); err != nil {
		if errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("nf_tables: a batch of %d messages does not fit the socket's buffer; raise the sysctl net.core.wmem_max: %w", len(all), err)
		}
		return fmt.Errorf("nf_tables: send a batch: %w", err)
	}
	return c.outcome(ctx, all[0].Header.Sequence, all[last].Header.Sequence, b.what)
}

// outcome reads the answers to messages first to last. first is the header of
// the batch; an error for it concerns the whole batch.
func (c *Conn) outcome(ctx context.Context, first, last uint32, what []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerBound)
	defer cancel()
	var refused error
	for {
		messages, err := c.receive(ctx)
		if err != nil {
			return errors.Join(refused, fmt.Errorf("the result of a batch is unknown: %w", err))
		}
		for _, m := range messages {
			at := m.Header.Sequence - first
			if m.Header.Type != netlink.Error || at > last-first {
				continue
			}
			a, err := parseAnswer(m)
			if err != nil {
				return err
			}
			if a.errno != 0 && refused == nil {
				refused = &Error{What: label(what, at), Errno: a.errno, Message: a.message}
			}
			if at == 0 || at == last-first {
				return refused
			}
		}
	}
}

func label(what []string, at uint32) string {
	if at == 0 || int(at) > len(what) {
		return "commit a batch"
	}
	return what[at-1]
}
