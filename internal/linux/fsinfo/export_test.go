package fsinfo

// AmountOf lets the tests see the arithmetic with numbers that no kernel here
// would tell.
func AmountOf(total, free, available, unit uint64) Amount {
	return amount(total, free, available, unit)
}
