enter();
turn('connecting');
follow();
